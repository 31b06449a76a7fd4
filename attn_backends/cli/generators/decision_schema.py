"""`decision-1.schema.json`: the JSON Schema of a decision record; the log says what stands in it."""

from attn_backends.selector.log.schema import render_schema as render

__all__ = ["render"]
