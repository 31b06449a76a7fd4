"""The decision log: what is written about each decision, and how it is read back, counted, compared and shown.

    sink     appends records to JSONL files                 scrub    what may enter a line
    line     one line, and the whole story, as text         phrase   a request or device in a few characters
    reader   records out of files, filters, find            counts   statistics over many records
    compare  two runs against each other                    html     one self-contained page ([report])
    schema   the JSON Schema of a record, from the one table    age  how long ago a time was measured
    evidence what ran under a decision, beside the log

Everything here reads the record (a plain dict, schema `attn.decision/1`), never the `Decision`: text, page and JSON
cannot disagree. Nothing is imported before it is asked for; on the call path that is `sink` and `line` alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attn_backends.selector.log.compare import diff, diff_text
    from attn_backends.selector.log.counts import stats, stats_text
    from attn_backends.selector.log.html import render_html
    from attn_backends.selector.log.line import info_line, record_text
    from attn_backends.selector.log.reader import find, keep, read
    from attn_backends.selector.log.schema import decision_schema, validate
    from attn_backends.selector.log.sink import JsonlSink

_HOMES = {
    "JsonlSink": "sink",
    "decision_schema": "schema",
    "diff": "compare",
    "diff_text": "compare",
    "find": "reader",
    "info_line": "line",
    "keep": "reader",
    "read": "reader",
    "record_text": "line",
    "render_html": "html",
    "stats": "counts",
    "stats_text": "counts",
    "validate": "schema",
}

__all__ = [
    "JsonlSink",
    "decision_schema",
    "diff",
    "diff_text",
    "find",
    "info_line",
    "keep",
    "read",
    "record_text",
    "render_html",
    "stats",
    "stats_text",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
