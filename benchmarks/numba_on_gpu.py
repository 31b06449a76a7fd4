"""How fast the two numba kernels for CUDA GPUs are, on the device and on the host; checked against float64 first.

    python benchmarks/numba_on_gpu.py [--rounds 15] [--out FILE]

16384 tokens, heads x head_dim = 2048, fresh random data, L2 cold. numba_mma: bfloat16, beside torch's FlashAttention-2,
round by round in turn, so that a chip that warms up meets both alike, and beside other ways to compile it (VARIANTS).
numba_tiled: float32. The host's time is that of many calls of `run` on a tiny problem, one after the other, by the wall's
clock. A kernel that is not there is left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import torch

from attn_backends import AttnBackendsError, attention
from attn_backends.bench.clock import CudaClock
from attn_backends.bench.versions import clocks, device_name, versions
from attn_backends.call import Call
from attn_backends.host.dispatch import device_of
from attn_backends.registry.registry import default_registry

TOKENS, WIDTH = 16384, 2048
HEAD_DIMS, CAUSAL = (64, 128), (False, True)
TINY, CALLS = 64, 200  # tokens of the problem that times the host, and how often it is called
PEER = "sdpa_flash"
# backend: what it is timed in, at these lengths, and the largest relative error that is rounding.
KERNELS: dict[str, tuple[torch.dtype, tuple[int, ...], float]] = {
    "numba_mma": (torch.bfloat16, (4096, 16384), 1e-2),
    "numba_tiled": (torch.float32, (2048,), 1e-5),
}
# numba_mma: what differs from the shipped kernel; one with spills is no candidate, but says what they cost.
VARIANTS: dict[str, dict[str, Any]] = {
    "lazy": {"lazy": True},
    "8 warps": {"warps": 8, "blocks": 1},
    "8 warps, lazy": {"warps": 8, "blocks": 1, "lazy": True},
    "one block more": {"blocks": 1},  # added to the shipped number
}


@dataclass(frozen=True)
class Cell:
    """What is timed."""

    backend: str
    dtype: torch.dtype
    head_dim: int
    seq: int
    causal: bool

    def __str__(self) -> str:
        return f"{self.backend} D{self.head_dim} S{self.seq} {'causal' if self.causal else 'full'}"

    def call(self, tokens: int = TOKENS, heads: int | None = None) -> Call:
        """Fresh random data on the current GPU."""
        seq = min(self.seq, tokens)
        shape = (tokens // seq, seq, heads or WIDTH // self.head_dim, self.head_dim)
        q, k, v = (torch.randn(shape, device="cuda").to(self.dtype) for _ in range(3))
        lse = torch.empty(shape[0], shape[2], seq, device="cuda")
        scale = self.head_dim**-0.5
        return Call(q=q, k=k, v=v, out=torch.empty_like(q), lse=lse, causal=self.causal, softmax_scale=scale)

    @property
    def flops(self) -> float:
        """Of both products; causal counts half."""
        return 4 * TOKENS * self.seq * WIDTH / (2 if self.causal else 1)


def installed() -> dict[str, Callable[[Call], None]]:
    """`run` of those kernels that are there."""
    names = [name for name in KERNELS if find_spec(f"attn_backends.backends.{name}")]
    return {name: importlib.import_module(f"attn_backends.backends.{name}.adapter").run for name in names}


def cells(names: Iterator[str] | list[str]) -> list[Cell]:
    """Everything that is timed."""
    found = []
    for name in names:
        dtype, seqs, _most = KERNELS[name]
        found += [Cell(name, dtype, *rest) for rest in product(HEAD_DIMS, seqs, CAUSAL)]
    return found


def error_of(call: Call) -> float:
    """Of what is in `out`, relative, against float64: the last head of the last sequence; NaN counts as infinite."""
    q, k, v, out = (tensor[-1, :, -1].double() for tensor in (call.q, call.k, call.v, call.out))
    scores = q @ k.T * call.softmax_scale
    if call.causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    right = scores.softmax(-1) @ v
    error = float((out - right).norm() / right.norm())
    assert call.lse is not None
    worst = float((call.lse[-1, -1].double() - scores.logsumexp(-1)).abs().max())
    return max(error, worst / 10) if math.isfinite(error + worst) else math.inf


def variants_of(cell: Cell, call: Call) -> dict[str, Callable[[], Any]]:
    """The same call by other kernels of numba_mma."""
    if cell.backend != "numba_mma":
        return {}
    from attn_backends.backends.numba_mma.adapter import HALVES, run
    from attn_backends.backends.numba_mma.config import shipped

    found: dict[str, Callable[[], Any]] = {}
    for name, changes in VARIANTS.items():
        plain = shipped(cell.head_dim, HALVES[cell.dtype])
        more = {"blocks": plain.blocks + 1} if name == "one block more" else changes
        config = dataclasses.replace(plain, **more)
        found[name] = lambda config=config: run(call, config)
    return found


def peer_of(call: Call) -> Callable[[], Any] | None:
    """The peer on the same call, where it takes it."""

    def ask() -> Any:
        return attention(call.q, call.k, call.v, causal=call.causal, backend=PEER)

    try:
        ask()
    except AttnBackendsError as missing:
        print(f"{PEER}: {str(missing).splitlines()[0]}", file=sys.stderr)
        return None
    return ask


def spread(samples: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(samples, n=4)
    return {"ms": middle, "low_ms": low, "high_ms": high}


def row_of(cell: Cell, run: Callable[[Call], None], clock: CudaClock, rounds: int) -> dict[str, Any]:
    """One cell: its error, its time and its peer's."""
    call = cell.call()
    asked: dict[str, Callable[[], Any]] = {cell.backend: lambda: run(call)}
    variants = variants_of(cell, call)
    asked |= variants
    errors = {}
    for name, ask in asked.items():
        call.out.fill_(torch.nan)
        call.lse.fill_(torch.nan)
        ask()
        errors[name] = error_of(call)
    error, most = errors[cell.backend], KERNELS[cell.backend][2]
    peer = peer_of(call) if cell.dtype is not torch.float32 else None
    asked |= {PEER: peer} if peer else {}
    times: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(rounds):
        for name, ask in asked.items():
            times[name].append(clock.sample(ask, 1.0)[0])
    figures = {name: spread(taken) for name, taken in times.items()}
    for figure in figures.values():
        figure["tflops"] = cell.flops / figure["ms"] / 1e9
    return {
        "backend": cell.backend, "dtype": str(cell.dtype).removeprefix("torch."), "head_dim": cell.head_dim,
        "seq": cell.seq, "causal": cell.causal, "error": error, "right": max(errors.values()) <= most,
        **figures[cell.backend], "variants": {name: {**figures[name], "error": errors[name]} for name in variants}, "peer": {"backend": PEER, **figures[PEER]} if peer else None,
        "ratio": figures[PEER]["ms"] / figures[cell.backend]["ms"] if peer else None,
    }  # fmt: skip


def host_row(cell: Cell, run: Callable[[Call], None], rounds: int) -> dict[str, Any]:
    """Microseconds of the host per call of `run`."""
    call = cell.call(tokens=TINY, heads=2)
    taken = []
    for _ in range(rounds + 1):  # the first one warms up
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(CALLS):
            run(call)
        taken.append(
            (time.perf_counter() - started) / CALLS * 1e6
        )  # until all are issued; the device may be at it still
    low, middle, high = statistics.quantiles(taken[1:], n=4)
    return {"backend": cell.backend, "head_dim": cell.head_dim, "us": middle, "low_us": low, "high_us": high}


def main() -> int:
    """Check and time everything, print it, write the file; 1 where a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200/numba_on_gpu.json"))
    given = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda", torch.cuda.current_device())
    clock, runs = CudaClock(device, device_of(device)), installed()
    host, rows = [], []
    for cell in (Cell(name, KERNELS[name][0], 64, TINY, False) for name in runs):
        host.append(host_row(cell, runs[cell.backend], given.rounds))
        print(f"{cell.backend}: {host[-1]['us']:.1f} us a call on the host", flush=True)
    for cell in cells(list(runs)):
        rows.append(row_of(cell, runs[cell.backend], clock, given.rounds))
        row = rows[-1]
        beside = f", {row['ratio']:.2f} x {PEER}" if row["ratio"] else ""
        print(f"{cell}: {row['tflops']:.1f} TFLOP/s{beside}, error {row['error']:.1e}", flush=True)
        print("   ", {name: round(one["tflops"], 1) for name, one in row["variants"].items()}, flush=True)
    record = {
        "schema": "attn.numba_cuda/1", "command": "python " + " ".join(sys.argv), "device": device_name(device),
        "versions": versions(default_registry().snapshot()), "clocks": clocks(device), "method": clock.method,
        "rounds": given.rounds, "rows": rows, "host": {"tokens": TINY, "calls": CALLS, "rows": host},
    }  # fmt: skip
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
