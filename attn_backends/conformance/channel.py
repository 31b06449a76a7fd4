"""The other end of a `Child`: one line of JSON in, one out, whatever the code that is run prints, or leaves open.

The channel is a copy of the output, and the output itself is closed before any backend is imported. First line in: the
job; first line out: {"ready": true}, or {"failed": why}.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import IO, Any

Message = dict[str, Any]


def serve(prepare: Callable[[Message], Callable[[Message], Message]]) -> None:
    """Answer messages until the input ends; `prepare` makes the answering function of the job."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    job = json.loads(sys.stdin.readline())
    lines = os.fdopen(os.dup(0), "r", encoding="utf-8")
    try:
        answer = prepare(job)
    except Exception as error:  # noqa: BLE001  # said to the parent, which reports it for everything it asked
        _say(channel, {"failed": f"{type(error).__name__}: {error}"})
        return
    _say(channel, {"ready": True})
    for line in lines:
        _say(channel, answer(json.loads(line)))


def _say(channel: IO[str], message: Message) -> None:
    """A line of its own, whatever a backend has left in the channel before."""
    channel.write("\n" + json.dumps(message) + "\n")
    channel.flush()
