"""Raises when imported; its manifest is fine."""

raise RuntimeError("crash_at_import: broken on purpose")
