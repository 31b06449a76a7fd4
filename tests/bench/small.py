"""Backends that behave and misbehave, registered in this process, and what a small run of a suite looks like."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from attn_backends import Call, register, unregister
from attn_backends.bench.machinery import EVERYTHING
from attn_backends.bench.rounds import Repeats
from attn_backends.bench.suite_run import Plan, Progress, Ran, run_suite
from attn_backends.bench.suites import read_suite

QUICK = Repeats(share_ms=0.001, least=2, most=2)
SEED = 7


def right(call: Call) -> None:
    """torch's own attention."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (call.q, call.k, call.v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=call.causal, scale=call.softmax_scale)
    call.out.copy_(out.transpose(1, 2))


def uncausal(call: Call) -> None:
    """It never asks whether the call is causal."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (call.q, call.k, call.v))
    call.out.copy_(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2))


def not_a_number(call: Call) -> None:
    """One element of one row."""
    right(call)
    call.out[-1, -1, -1, -1] = float("nan")


def crashing(call: Call) -> None:
    """A kernel that does not run."""
    raise RuntimeError("invalid argument in /home/somebody/kernels/launch.cu")


def hungry(call: Call) -> None:
    """More memory than there is."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB.")


class FailsLater:
    """Right while it is checked and warmed up, then it raises."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def __call__(self, call: Call) -> None:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the queue is full")
        right(call)


@contextlib.contextmanager
def registered(**backends: Callable[[Call], None]) -> Iterator[tuple[str, ...]]:
    """Backends in the default registry for a while."""
    made: list[str] = []
    try:
        for name, run in backends.items():
            register({"name": name, "priority": 5, "capability": [EVERYTHING]}, run)
            made.append(name)
        yield tuple(made)
    finally:
        for name in made:
            unregister(name)


def small_run(folder: Path, backends: tuple[str, ...], *, suite: str = "prefill", cells: int = 2, **more: Any) -> Ran:
    """The first cells of a small suite on the CPU."""
    made = read_suite(suite, "small")
    plan = Plan(
        suite=made, cells=made.cells[:cells], backends=backends, device=more.pop("device", torch.device("cpu")), seed=more.pop("seed", SEED),
        command=more.pop("command", f"attn-backends bench --suite {suite}"), path=folder / f"{suite}.json", repeats=QUICK,
        **more,
    )  # fmt: skip
    return run_suite(plan, Progress())
