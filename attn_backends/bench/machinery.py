"""What the machinery itself costs, on one core, eager mode, no hooks: cached paths, an uncached selection, fresh processes.

Every figure comes beside torch's own `scaled_dot_product_attention` on a (1, 1, 1, 8) tensor, measured in the same rounds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from attn_backends.api import attention
from attn_backends.bench.host_time import CALLS, ROUNDS, host_times
from attn_backends.device import Device
from attn_backends.host import dispatch
from attn_backends.host.arguments import Arguments
from attn_backends.registry.knobs import raw_knobs
from attn_backends.registry.registry import Registry
from attn_backends.registry.shortcuts import register, unregister
from attn_backends.request import Request
from attn_backends.selector.resolve import resolve
from attn_backends.selector.select import question_of, select
from attn_backends.selector.times import NO_TIMES

EVERYTHING: dict[str, Any] = {
    "device": ["cpu"], "arch": "any", "dtype": "any", "kv_format": ["dense"], "layout": "any", "phase": "any",
    "attn_type": "any", "head_dim": "any", "head_dim_v": "any", "gqa_ratio": "any", "seq_len": "any",
    "causal": "any", "strides": "any", "index_width": [32, 64],
}  # fmt: skip
BACKENDS = 15  # of an uncached selection
PROCESSES = 7


def cached_paths(*, rounds: int = ROUNDS, calls: int = CALLS) -> dict[str, list[float]]:
    """Microseconds of torch's call, `select`, the decision inside `attention()`, and `attention()` itself."""
    q = torch.randn(1, 1, 1, 8)
    register({"name": "does_nothing", "priority": 10_000, "capability": [EVERYTHING]}, lambda _call: None)
    try:
        with torch.no_grad():
            attention(q, q, q)
            request = Request.from_tensors(q, q, q)
            bound = dispatch.find_bound(q, q, q, Arguments())
            select(request)
            attention(q, q, q, backend="sdpa_math")
            kernel = select(request, backend="sdpa_math").load()
            kernel(q, q, q)
            return host_times(
                {
                    "sdpa": lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q),
                    "select_cached": lambda: select(request),
                    "kernel_doing_nothing": lambda: bound.loaded.run(None),
                    "attention_around_nothing": lambda: attention(q, q, q),
                    "bound_fast": lambda: bound.fast(q, q, q),
                    "ledger_step": bound.account.launches.step,
                    "attention_sdpa_math": lambda: attention(q, q, q, backend="sdpa_math"),
                    "loaded_sdpa_math": lambda: kernel(q, q, q),
                    "allocate_output": lambda: torch.empty_like(q),
                },
                rounds=rounds,
                calls=calls,
            )
    finally:
        unregister("does_nothing")


def uncached(*, rounds: int = 20, read: bool = False) -> list[float]:
    """Microseconds of one resolution over 15 backends; one sample per request and round.

    `read`: every record with its reasons as well, which are written when somebody reads them.
    """
    registry = Registry()
    for name in sorted(registry.snapshot().names())[BACKENDS:]:
        registry.unregister(name)
    device = Device.pretend("h200")

    def once(request: Request) -> float:
        started = time.perf_counter()
        question, _ = question_of(
            request, None, None, device, None, (), raw_knobs(), registry.snapshot(), registry, NO_TIMES
        )
        decision = resolve(question)
        if read:
            decision.records.read()
        return (time.perf_counter() - started) * 1e6

    requests = _requests()
    for request in requests:
        once(request)
    return [once(request) for _ in range(rounds) for request in requests]


def fresh_import(processes: int = PROCESSES) -> list[float]:
    """Milliseconds to import the package, in processes of their own."""
    timer = "import time; t = time.perf_counter(); import attn_backends; print((time.perf_counter() - t) * 1e3)"
    with _compiled() as environment:
        command = [sys.executable, "-c", timer]
        times = [float(subprocess.check_output(command, env=environment)) for _ in range(processes + 1)]  # noqa: S603
    return times[1:]


def fresh_list(processes: int = PROCESSES) -> list[float]:
    """Milliseconds of `attn-backends list`, the interpreter's start included."""
    command = [sys.executable, "-m", "attn_backends.cli.main", "list"]
    times = []
    with _compiled() as environment:
        for _ in range(processes + 1):
            started = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)  # noqa: S603
            times.append((time.perf_counter() - started) * 1e3)
    return times[1:]


@contextmanager
def _compiled() -> Iterator[dict[str, str]]:
    """An environment in which the first process writes the bytecode of all that is imported, as an installation does."""
    with tempfile.TemporaryDirectory() as folder:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        yield {**kept, "PYTHONPYCACHEPREFIX": folder}


def _requests() -> list[Request]:
    """32 shapes and features: head widths, lengths, windows, softcaps."""
    shapes = [(d, s, w, cap) for d in (40, 64, 128, 256) for s in (77, 4096) for w in (-1, 127) for cap in (None, 30.0)]
    return [
        Request(
            dtype="bfloat16", seq_q=s, seq_k=s, num_q_heads=32, num_kv_heads=8, head_dim_qk=d, head_dim_v=d, causal=True,
            window_left=w, softcap=cap,
        )
        for d, s, w, cap in shapes
    ]  # fmt: skip
