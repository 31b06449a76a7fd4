"""How long one call takes: on the device, by CUDA events around it, and on the host, by its clock around the call.

Before every sample on a GPU a buffer several times the size of the L2 cache is written, so that no sample finds its inputs
there, and as often as it takes to keep the device busy until the host has issued the call: the events then see the call's
own work without gaps. Where the host was slower than that, because it was interrupted, the sample is taken again with more
work in front. On a CPU the two times are one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from attn_backends.device import Device

L2_TIMES = 4
LEAST_BUFFER = 256 * 2**20
MOST_FLUSHES = 64
MOST_TRIES = 4  # of one sample


class Clock(Protocol):
    """Takes one sample of a call."""

    @property
    def method(self) -> str:
        """How it measures, in words."""
        ...

    def sample(self, call: Callable[[], Any], host_ms: float) -> tuple[float, float]:
        """(device, host) milliseconds; `host_ms` is about what the call takes on the host."""
        ...


class HostClock:
    """A CPU's clock."""

    method = "perf_counter around the call; caches as they are"

    def sample(self, call: Callable[[], Any], host_ms: float) -> tuple[float, float]:
        """Both times are the wall's."""
        started = time.perf_counter()
        call()
        took = (time.perf_counter() - started) * 1e3
        return took, took


class CudaClock:
    """CUDA events on the current stream of one device."""

    def __init__(self, device: torch.device, facts: Device) -> None:
        size = max(LEAST_BUFFER, L2_TIMES * (facts.l2_bytes or 0))
        self._buffer = torch.empty(size, dtype=torch.int8, device=device)
        self._flush_ms = self._time_of_a_flush()
        self.method = f"CUDA events; before every sample {size >> 20} MiB are written, so that the L2 cache is cold"

    def sample(self, call: Callable[[], Any], host_ms: float) -> tuple[float, float]:
        """The device's time by events, the host's until the call returned; the best of those tries that had a gap."""
        tries: list[tuple[float, float]] = []
        while len(tries) < MOST_TRIES:
            device_ms, took, gap = self._try(call, host_ms)
            if not gap:
                return device_ms, took
            tries.append((device_ms, took))
            if took > MOST_FLUSHES * self._flush_ms:
                break  # nothing hides that: the call waits for the device, or is the host's work
            host_ms = 2 * max(host_ms, took)
        return min(tries)

    def _try(self, call: Callable[[], Any], host_ms: float) -> tuple[float, float, bool]:
        """(device, host) milliseconds, and whether the device had nothing to do before all of the call was issued."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for _ in range(min(MOST_FLUSHES, 1 + math.ceil(host_ms / self._flush_ms))):
            self._buffer.zero_()
        start.record()
        started = time.perf_counter()
        call()
        took = (time.perf_counter() - started) * 1e3
        end.record()
        gap = start.query()
        torch.cuda.synchronize()
        return start.elapsed_time(end), took, gap

    def _time_of_a_flush(self) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._buffer.zero_()
        start.record()
        for _ in range(8):
            self._buffer.zero_()
        end.record()
        torch.cuda.synchronize()
        return max(1e-3, float(start.elapsed_time(end)) / 8)


def clock_for(device: torch.device, facts: Device) -> Clock:
    """The clock of a device."""
    return CudaClock(device, facts) if device.type == "cuda" else HostClock()
