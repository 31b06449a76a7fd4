"""A small attention backend."""
