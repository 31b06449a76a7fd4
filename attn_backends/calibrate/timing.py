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
from attn_backends.calibrate.crew import Spans

FEW = Repeats(share_ms=20.0, least=5, most=5)
MORE = Repeats(share_ms=16.0, least=2, most=8)  # besides, of a call that they leave near the best
LONG_MS = 4.0  # of a call, whose few samples are near enough to each other
APART = 1.02  # quartiles that are farther from each other than this are clear of each other

Json = dict[str, Any]


def time_backend(
    name: str, cell: Cell, *, clock: Clock, seed: int, device: torch.device, check: bool, best: Spans | None = None
) -> Json:  # fmt: skip
    """`status`, and where it is ok `ms`, `q25`, `q75`, `samples`, `spans`; else `why`. `first_s`: seconds until it was ready.

    The times are geometric means over the sizes that stand for the cell's bucket; the first one is checked. A backward cell
    is a step of training: its forward and its backward are timed, and added. `spans` are the quartiles of each pass at each
    size; `best` are those of the fastest backend so far: who is clear of them is sampled less often.
    """
    found: list[Json] = []
    rivals = list(best or ())
    for size in sizes_of(cell):
        answer = _step(name, size, clock, seed, device, check and not found, rivals)
        if answer["status"] != OK:
            return answer
        found.append(answer)
    return {
        "status": OK, "why": "", "samples": min(one["samples"] for one in found),
        "first_s": max(one["first_s"] for one in found),
        "spans": [span for one in found for span in one["spans"]],
        **{field: geometric_mean([one[field] for one in found]) for field in ("ms", "q25", "q75")},
    }  # fmt: skip


def _step(
    name: str, cell: Cell, clock: Clock, seed: int, device: torch.device, check: bool, rivals: Spans
) -> Json:  # fmt: skip
    """One size; takes the spans of its passes from the front of `rivals`."""
    passes = ("forward", "backward") if cell.passes == "backward" else ("forward",)
    found: list[Summary] = []
    first_s = 0.0
    for one in passes:
        rival = rivals.pop(0) if rivals else None
        answer = _pass(name, replace(cell, passes=one), clock, seed, device, check, rival)
        if "summary" not in answer:
            return {"status": answer["status"], "why": answer["why"], "first_s": first_s}
        found.append(answer["summary"])
        first_s += answer["first_s"]
    return {
        "status": OK, "ms": sum(one.median for one in found), "q25": sum(one.q25 for one in found),
        "q75": sum(one.q75 for one in found), "samples": min(one.count for one in found), "why": "", "first_s": first_s,
        "spans": [[one.q25, one.q75] for one in found],
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


def _pass(
    name: str, cell: Cell, clock: Clock, seed: int, device: torch.device, check: bool, rival: list[float] | None
) -> Json:  # fmt: skip
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
        failed = take_rounds([made], clock, FEW)
        if not failed and _undecided(Summary.of(made.device_ms), rival):
            failed = take_rounds([made], clock, MORE)
    return failed.get(name) or {"summary": Summary.of(made.device_ms), "first_s": first_s}


def _undecided(found: Summary, rival: list[float] | None) -> bool:
    """Whether more samples could change who is the faster one; the first one is a rival to come."""
    if found.median > LONG_MS:
        return False
    return rival is None or (found.q25 <= APART * rival[1] and rival[0] <= APART * found.q75)
