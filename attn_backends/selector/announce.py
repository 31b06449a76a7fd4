"""Telling of a new decision: one INFO line, one JSON line where a log folder is set, and the hooks.

Nothing is rendered while nobody listens. A failure here never fails a call.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from attn_backends.registry.hooking import active_hooks
from attn_backends.registry.telling import LOG, tell

if TYPE_CHECKING:
    from attn_backends.registry.knobs import Knobs
    from attn_backends.selector.decision import Decision
    from attn_backends.selector.log.sink import JsonlSink

_sinks: dict[tuple[str, int | None, int | None], JsonlSink] = {}


def announce(decision: Decision, knobs: Knobs) -> None:
    """Log a decision that was just made, and tell the hooks."""
    sink = _sink(knobs) if knobs.log else None
    telling = LOG.isEnabledFor(logging.INFO)
    if telling or (sink is not None and sink.active):
        _record(decision, sink, telling)
    hooks = active_hooks()
    if hooks is not None:
        hooks.decided(decision)


def _record(decision: Decision, sink: JsonlSink | None, telling: bool) -> None:
    record = decision.to_json()
    if telling:
        from attn_backends.selector.log.line import info_line

        tell(logging.INFO, "%s", info_line(record))
    if sink is not None:
        sink.write(record)


def log_folder(setting: str) -> Path:
    """The folder that ATTN_BACKENDS_LOG means; `1` is the user's log folder."""
    if setting == "1":
        import platformdirs

        return Path(platformdirs.user_log_dir("attn-backends"))
    return Path(setting)


def _sink(knobs: Knobs) -> JsonlSink:
    key = (knobs.log or "1", knobs.log_bytes, knobs.log_files)
    sink = _sinks.get(key)
    if sink is None:
        from attn_backends.selector.log.sink import JsonlSink

        limits = {"max_bytes": knobs.log_bytes, "max_files": knobs.log_files}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        sink = _sinks.setdefault(key, JsonlSink(log_folder(key[0]), **given))
    return sink
