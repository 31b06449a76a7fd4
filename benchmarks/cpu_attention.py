"""The CPU backends side by side: prefill, a window, and paged decode, on this machine's cores.

    python benchmarks/cpu_attention.py [--out benchmarks/results/cpu/cpu_attention.json]

Each case is timed in turn, `ROUNDS` rounds, fresh random inputs; every backend's output is held against `eager` in
float64 first. `ratio` is the peer's median over numba_cpu's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import attn_backends

OWN = "numba_cpu"
ROUNDS = 15
WARM_UPS = 3
LIMIT = 2e-5  # of the largest value, float32
PAGE = 16

# name: (peer, at least this ratio, how q, k and v are drawn, arguments)
CASES: dict[str, tuple[str, float | None, dict[str, int], dict[str, Any]]] = {
    **{
        f"prefill s{seq} d{width}": ("sdpa_cpu_flash", 0.7, {"seq": seq, "width": width}, {"causal": True})
        for seq in (512, 2048)
        for width in (64, 128)
    },
    **{
        f"window 128 s4096 d{width}": ("sdpa_cpu_flash", 2.0, {"seq": 4096, "width": width}, {"causal": True, "window_left": 127})
        for width in (64, 128)
    },
    **{
        f"decode b{batch} k{keys} d128": ("eager", 3.0, {"batch": batch, "keys": keys, "width": 128}, {"causal": True})
        for batch, keys in ((1, 4096), (8, 2048))
    },
}  # fmt: skip


def dense(seq: int, width: int, dtype: torch.dtype) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """One sequence, eight heads."""
    return tuple(torch.randn(1, seq, 8, width, dtype=dtype) for _ in range(3)), {}


def paged(batch: int, keys: int, width: int, dtype: torch.dtype) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """One new token per sequence, 32 query heads over 8 KV heads, pages in random order."""
    pages = batch * keys // PAGE
    q = torch.randn(batch, 1, 32, width, dtype=dtype)
    k, v = (torch.randn(pages, PAGE, 8, width, dtype=dtype) for _ in range(2))
    table = torch.randperm(pages).to(torch.int32).reshape(batch, -1)
    return (q, k, v), {"block_table": table, "seq_lens": torch.full((batch,), keys, dtype=torch.int32)}


def measure(name: str) -> dict[str, Any]:
    """One case, both backends."""
    peer, least, sizes, arguments = CASES[name]
    tensors, more = (paged if "keys" in sizes else dense)(**sizes, dtype=torch.float32)
    calls = {one: _call(one, tensors, arguments | more) for one in (OWN, peer)}
    right = _call("eager", tuple(t.double() for t in tensors), arguments | more)()
    errors = {one: float((call() - right).abs().max() / right.abs().max()) for one, call in calls.items()}
    if max(errors.values()) > LIMIT:
        raise SystemExit(f"{name}: wrong, {errors}")
    found = _timed(calls)
    ratio = found[peer]["ms"] / found[OWN]["ms"]
    return {"case": name, "peer": peer, "backends": found, "errors": errors, "ratio": ratio, "wanted": least}


def _call(backend: str, tensors: tuple[torch.Tensor, ...], arguments: dict[str, Any]) -> Callable[[], torch.Tensor]:
    return lambda: attn_backends.attention(*tensors, **arguments, backend=backend)


def _timed(calls: dict[str, Callable[[], Any]]) -> dict[str, dict[str, float]]:
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(WARM_UPS + ROUNDS):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            if number >= WARM_UPS:
                samples[name].append((time.perf_counter() - begin) * 1e3)
    quarters = {name: statistics.quantiles(times, n=4) for name, times in samples.items()}
    return {name: {"ms": middle, "q25": low, "q75": high} for name, (low, middle, high) in quarters.items()}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/cpu/cpu_attention.json"))
    asked = parser.parse_args()
    rows = [measure(name) for name in CASES]
    packages = ("torch", "numba", "numpy", "scipy")
    record = {
        "schema": "attn.cpu_attention/1", "command": "python benchmarks/cpu_attention.py", "machine": platform.machine(),
        "cores": os.cpu_count(), "threads": torch.get_num_threads(), "versions": {name: version(name) for name in packages},
        "rounds": ROUNDS, "cases": rows,
    }  # fmt: skip
    asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        own, peer = row["backends"][OWN]["ms"], row["backends"][row["peer"]]["ms"]
        print(
            f"{row['case']:24} {own:8.2f} ms, {row['peer']} {peer:8.2f} ms: {row['ratio']:.2f}x (wanted {row['wanted']})"
        )


if __name__ == "__main__":
    main()
