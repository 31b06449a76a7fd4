"""The process that runs items, one line of JSON in, one out: `python -m attn_backends.conformance.worker`.

What a backend prints goes nowhere: the channel is a copy of the output, and the output itself is closed to it before
any backend is imported. One thread of torch, since several workers share the machine. Started by `isolation` only.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import IO, Any


def main() -> None:
    """Serve items until the input ends. First line in: the job; first line out: {"ready": true}, or {"failed": why}."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    job = json.loads(sys.stdin.readline())
    lines = os.fdopen(os.dup(0), "r", encoding="utf-8")
    _serve(job, lines, channel)


def _serve(job: dict[str, Any], lines: IO[str], channel: IO[str]) -> None:
    try:
        if job["setup"]:
            module, _, function = job["setup"].partition(":")
            getattr(importlib.import_module(module), function)()
        import torch

        from attn_backends.conformance.checks import context_of
        from attn_backends.conformance.engine import run_with
        from attn_backends.conformance.item import Item, parse_item

        torch.set_num_threads(job["threads"])
        context = context_of(job["backend"], job["device"])
    except Exception as error:  # noqa: BLE001  # said to the parent, which reports it for every item
        _say(channel, {"failed": f"{type(error).__name__}: {error}"})
        return
    _say(channel, {"ready": True})
    for line in lines:
        asked = json.loads(line)
        check, case = parse_item(asked["id"])
        result = run_with(context, Item(check, case, tuple(asked["clauses"])))
        _say(channel, result.to_json())


def _say(channel: IO[str], message: dict[str, Any]) -> None:
    """A line of its own, whatever a backend has left in the channel before."""
    channel.write("\n" + json.dumps(message) + "\n")
    channel.flush()


if __name__ == "__main__":
    main()
