"""All tasks of a call, side by side or one after the other; arguments as in `tile.attend`, compiled by compiling.py."""

from __future__ import annotations

from typing import Any

from numba import prange

from attn_backends.backends.numba_cpu.tile import attend


def attend_all(
    tasks: Any, q: Any, k: Any, v: Any, table: Any, bias: Any, mask: Any, blocks: Any, inner: Any, slopes: Any, sinks: Any,
    asked: Any, numbers: Any, out: Any, lse: Any,
) -> None:  # fmt: skip
    """Run every row of `tasks` (columns: flags.py), side by side."""
    for t in prange(tasks.shape[0]):
        attend(tasks[t], (q, k, v, table), (bias, mask, blocks, inner, slopes, sinks), asked, numbers, out, lse)


def attend_in_order(
    tasks: Any, q: Any, k: Any, v: Any, table: Any, bias: Any, mask: Any, blocks: Any, inner: Any, slopes: Any, sinks: Any,
    asked: Any, numbers: Any, out: Any, lse: Any,
) -> None:  # fmt: skip
    """The same in one thread: a function of its own, because numba's cache tells functions apart, not their options."""
    for t in range(tasks.shape[0]):
        attend(tasks[t], (q, k, v, table), (bias, mask, blocks, inner, slopes, sinks), asked, numbers, out, lse)
