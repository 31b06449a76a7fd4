"""The command line that runs one item again, ready to be pasted into a shell."""

from __future__ import annotations

import shlex

from attn_backends.conformance.devices import torch_word
from attn_backends.conformance.item import parse_item
from attn_backends.conformance.record import RunRecord


def replay_command(record: RunRecord, item: str) -> str:
    """`attn-backends conformance run my_fa --only check/case`; the device is named where it is not the CPU."""
    return replay(record.backend, item, level=record.level, kind=str(record.device.get("kind", "cpu")))


def replay(backend: str, item: str, *, level: str, kind: str) -> str:
    """The same from its parts. `level` counts: an item of `full` is not in `quick`'s list."""
    words = ["attn-backends", "conformance", "run", backend, "--level", level]
    if _is_item(item):
        words += ["--only", item]
    if kind != "cpu":
        words += ["--device", torch_word(kind)]
    return shlex.join(words)


def _is_item(text: str) -> bool:
    """Whether an id can be run alone; `declared/sinks=true` is about the run as a whole."""
    try:
        parse_item(text)
    except ValueError:
        return False
    return True
