"""Doors into other frameworks. Imports torch."""
