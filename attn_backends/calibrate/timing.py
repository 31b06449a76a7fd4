"""One backend on one cell, in this process: drawn, checked where it is new, timed; as plain values."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

import torch

from attn_backends.bench.cell import Cell
from attn_backends.bench.clock import Clock
from attn_backends.bench.contender import Contender, contender, failure
from attn_backends.bench.inputs import make_inputs
from attn_backends.bench.results import OK
from attn_backends.bench.rounds import Repeats, take_rounds
from attn_backends.bench.summary import Summary
from attn_backends.calibrate.cells import sizes_of

REPEATS = Repeats(share_ms=20.0, least=5, most=11)

Json = dict[str, Any]


def time_backend(name: str, cell: Cell, *, clock: Clock, seed: int, device: torch.device, check: bool) -> Json:
    """`status`, and where it is ok `ms`, `q25`, `q75`, `samples`; else `why`. `first_s`: seconds until it was ready.

    The times are geometric means over the sizes that stand for the cell's bucket; the first one is checked. A backward cell
    is a step of training: its forward and its backward are timed, and added.
    """
    found: list[Json] = []
    for size in sizes_of(cell):
        answer = _step(name, size, clock, seed, device, check and not found)
        if answer["status"] != OK:
            return answer
        found.append(answer)
    return {
        "status": OK, "why": "", "samples": min(one["samples"] for one in found),
        "first_s": max(one["first_s"] for one in found),
        **{field: geometric_mean([one[field] for one in found]) for field in ("ms", "q25", "q75")},
    }  # fmt: skip


def _step(name: str, cell: Cell, clock: Clock, seed: int, device: torch.device, check: bool) -> Json:
    """One size."""
    passes = ("forward", "backward") if cell.passes == "backward" else ("forward",)
    found: list[Summary] = []
    first_s = 0.0
    for one in passes:
        answer = _pass(name, replace(cell, passes=one), clock, seed, device, check)
        if "summary" not in answer:
            return {"status": answer["status"], "why": answer["why"], "first_s": first_s}
        found.append(answer["summary"])
        first_s += answer["first_s"]
    return {
        "status": OK, "ms": sum(one.median for one in found), "q25": sum(one.q25 for one in found),
        "q75": sum(one.q75 for one in found), "samples": min(one.count for one in found), "why": "", "first_s": first_s,
    }  # fmt: skip


def call_once(name: str, cell: Cell, *, seed: int, device: torch.device) -> Json:
    """`status`, ok where the backend was called; whether it was right is not looked at."""
    try:
        made = contender(name, cell, make_inputs(cell, seed, device), check=False)
        if not isinstance(made, Contender):
            return made
        made.call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except Exception as error:  # noqa: BLE001  # it fails again where it counts
        return failure(error)
    return {"status": OK, "why": ""}


def _pass(name: str, cell: Cell, clock: Clock, seed: int, device: torch.device, check: bool) -> Json:
    started = time.perf_counter()
    try:
        inputs = make_inputs(cell, seed, device)
    except Exception as error:  # noqa: BLE001  # a cell that does not fit here is a result
        return failure(error)
    made = contender(name, cell, inputs, check=check)
    if not isinstance(made, Contender):
        return made
    first_s = time.perf_counter() - started
    with torch.no_grad():
        failed = take_rounds([made], clock, REPEATS)
    return failed.get(name) or {"summary": Summary.of(made.device_ms), "first_s": first_s}
