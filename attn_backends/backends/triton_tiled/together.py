"""Launching several kernels of one call: in order, and what is new to this process compiled side by side before.

A backward takes three or four kernels, and Triton compiles each in its own launch, one after another. Its compiler
leaves Python's lock alone most of the time, so threads help.
"""

from __future__ import annotations

import contextvars
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import triton
from triton import knobs

_MOST = 4  # kernels of one call


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel and all that it is launched with."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def __call__(self) -> None:
        """Launch."""
        self.kernel[self.grid](*self.arguments, **self.options)

    @property
    def kind(self) -> Hashable:
        """Equal for most launches of the same code; where not, a kernel is compiled by its own launch."""
        first = self.arguments[0]
        return id(self.kernel), getattr(first, "dtype", None) or first.base.dtype, *self.options.values()


_seen: set[Hashable] = set()


def launch_all(launches: Sequence[Launch]) -> None:
    """Launch in order. Raises what Triton's compiler raises."""
    kinds = {launch.kind: launch for launch in launches}
    if not _seen.issuperset(kinds):
        compile_side_by_side([launch for kind, launch in kinds.items() if kind not in _seen])
        _seen.update(kinds)
    for launch in launches:
        launch()


def compile_side_by_side(launches: Sequence[Launch]) -> None:
    """Have Triton compile in threads what it has not compiled yet; what fails is left to its own launch, which raises."""
    if knobs.runtime.interpret or len(launches) < 2:
        return
    # Triton's mode is a context variable, of which there is one at a time, and an interrupt leaves it set.
    contextvars.Context().run(_compile, launches)


def _compile(launches: Sequence[Launch]) -> None:
    with ThreadPoolExecutor(_MOST) as pool, triton.AsyncCompileMode(pool, ignore_errors=True):
        for launch in launches:
            launch.kernel.warmup(*launch.arguments, grid=launch.grid, **launch.options)
