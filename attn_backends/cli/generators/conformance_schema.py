"""`conformance-1.schema.json`: the JSON Schema of a conformance report; the report says what stands in it."""

from attn_backends.conformance.report.schema import render_schema as render

__all__ = ["render"]
