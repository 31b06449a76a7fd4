"""Zeros on the device that a launch counts in, and leaves as zeros: no launch has to clear them first.

One range of cells per stream, whose launches follow each other, and one for every call that a graph captures, because a graph
may be replayed on any stream. All of them lie in one tensor per device, which is cleared once. Where that is used up, or cannot
be made because the first call of all is captured, a launch gets a tensor of its own, which is cleared each time.
"""

from __future__ import annotations

import threading

import torch

CELLS = 2**22  # int32, 16 MiB per device


class Counters:
    """The cells of one device. Not for two threads that launch on one stream at the same time."""

    def __init__(self, device: torch.device, cells: int = CELLS) -> None:
        self._cells = torch.zeros(cells, dtype=torch.int32, device=device)
        self._used = 0
        self._lock = threading.Lock()
        self._of_stream: dict[int, torch.Tensor] = {}
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # cleared for launches on every stream

    def of_stream(self, stream: int, count: int) -> torch.Tensor:
        """At least `count` cells, the same ones every time."""
        kept = self._of_stream.get(stream)
        if kept is None or kept.numel() < count:
            kept = self._of_stream[stream] = self.taken(1 << (count - 1).bit_length())
        return kept

    def taken(self, count: int) -> torch.Tensor:
        """`count` cells that nobody else gets, whichever threads ask at once."""
        with self._lock:
            first = self._used
            if first + count <= self._cells.numel():
                self._used += count
                return self._cells[first : first + count]
        return torch.zeros(count, dtype=torch.int32, device=self._cells.device)


_COUNTERS: dict[torch.device, Counters] = {}


def counters_for(device: torch.device, count: int) -> torch.Tensor:
    """int32 [count or more], zeros whenever a launch on the current stream, or a replay of it, begins."""
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    kept = _COUNTERS.get(device)
    if kept is None:
        if capturing:
            return torch.zeros(count, dtype=torch.int32, device=device)
        kept = _COUNTERS[device] = Counters(device)
    if capturing:
        return kept.taken(count)
    return kept.of_stream(torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0, count)
