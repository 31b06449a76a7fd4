"""Plain IEEE arithmetic for one call: no TF32, no bfloat16 products, no autocast, no autograd graph.

float64 is computed in float64, everything else in float32. The switches of torch are process-wide, so nested and
concurrent calls count: the first one in turns them, the last one out restores what was there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for every other dtype of q."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class _Switches:
    """How many calls are inside, and how to restore what the first one found."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._restore: Callable[[], None] | None = None

    def enter(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._restore = _switch_to_ieee()
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._restore is not None:
                self._restore()


_switches = _Switches()


@contextmanager
def exact_math(device: torch.device) -> Iterator[None]:
    """Inside, a float32 product on `device` is a float32 product, and nothing is recorded for autograd."""
    _switches.enter()
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        _switches.leave()


def _switch_to_ieee() -> Callable[[], None]:
    """Turn the switches of this torch; returns what turns them back."""
    backends: Any = torch.backends
    if not hasattr(backends.cuda.matmul, "fp32_precision"):  # torch < 2.9
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        return lambda: torch.set_float32_matmul_precision(before)
    switches = [backends.cuda.matmul, backends.mkldnn.matmul]
    values = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "ieee"

    def restore() -> None:
        for switch, value in zip(switches, values, strict=True):
            switch.fp32_precision = value

    return restore
