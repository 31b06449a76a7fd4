"""How fast a GPU reads as much as a small cache holds: what benchmarks/paged_decode_tiles.py calls a limit."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from attn_backends.bench.clock import CudaClock
from attn_backends.host.dispatch import device_of

MEGABYTES = (67, 134, 268, 537)  # of caches that a small batch reads
PROGRAMS = (528, 1056)
BLOCK = 2048  # int32 of a program at a time
HOST_MS = 0.5


@triton.jit
def read_alone(source, found, count, block: tl.constexpr, policy: tl.constexpr):
    """One number per program, of `count` int32 each, so that every one is read."""
    program = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, block)
    acc = tl.zeros([block], tl.int32)
    for first in range(0, count, block):
        acc ^= tl.load(source + program * count + first + lanes, eviction_policy=policy)
    tl.store(found + program, tl.sum(acc, 0))


class CleanClock(CudaClock):
    """The L2 cache holds lines of something else that were read, none that was changed and has to leave it first."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, device_of(device))
        unit = PROGRAMS[0] * BLOCK
        self._other = torch.zeros(2**26 // unit * unit, dtype=torch.int32, device=device)
        self._found = torch.empty(PROGRAMS[0], dtype=torch.int32, device=device)

    def sample(self, call: Callable[[], Any], host_ms: float) -> tuple[float, float]:
        """The device's time; the host has as long as a read of 256 MiB takes, and what was written before."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for _ in range(3):
            self._buffer.zero_()
        _read(self._other, self._found, PROGRAMS[0], "")
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)), host_ms


def limits(device: torch.device, rounds: int) -> list[dict[str, Any]]:
    """Microseconds per size, with changed and with clean lines in the L2 cache; `start` is a kernel that does next to nothing."""
    clocks = {"changed": CudaClock(device, device_of(device)), "clean": CleanClock(device)}
    found = torch.empty(max(PROGRAMS), dtype=torch.int32, device=device)
    one = torch.zeros(1, device=device)
    rows = []
    for megabytes in MEGABYTES:
        unit = max(PROGRAMS) * BLOCK
        source = torch.zeros(round(megabytes * 1e6 / 4 / unit) * unit, dtype=torch.int32, device=device)
        half = source[: source.numel() // 2]
        asks: dict[str, Callable[[], Any]] = {
            f"{programs} programs {policy}".strip(): functools.partial(_read, source, found, programs, policy)
            for programs in PROGRAMS
            for policy in ("", "evict_first")
        }
        asks |= {
            "copy_ of half": functools.partial(torch.empty_like(half).copy_, half),
            "start": functools.partial(one.add_, 1),
        }
        for ask in asks.values():
            ask()
        taken = {
            state: {
                name: statistics.median(clock.sample(ask, HOST_MS)[0] for _ in range(rounds)) * 1e3
                for name, ask in asks.items()
            }
            for state, clock in clocks.items()
        }
        rows.append({"megabytes": source.numel() * 4e-6, **taken})
    return rows


def _read(source: torch.Tensor, found: torch.Tensor, programs: int, policy: str) -> None:
    read_alone[(programs,)](source, found, source.numel() // programs, block=BLOCK, policy=policy, num_warps=4)
