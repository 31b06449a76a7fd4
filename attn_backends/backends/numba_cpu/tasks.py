"""Cutting a call into tasks: which query rows of which heads are computed together. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attn_backends.backends.numba_cpu.flags import COLUMNS, T_FIRST_ROW, T_ROWS, T_SEQ_K, T_SEQ_Q

TILE_ROWS = 128
Table = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where one sequence lies: entry of the tensor and first token there, of q and of k; and its lengths."""

    entry_q: int
    first_q: int
    seq_q: int
    entry_k: int
    first_k: int
    seq_k: int


def tasks_of(spans: list[Span], kv_heads: int, group: int, band: tuple[int, int, bool]) -> Table:
    """One row per task (columns: flags.py), the longest first.

    group: query heads per KV head; band: (left, right, bottom_right), -1 = unbounded
    """
    parts = [part for number, span in enumerate(spans) for part in _of_sequence(number, span, kv_heads, group)]
    if not parts:
        return np.empty((0, COLUMNS), np.int64)
    table = np.concatenate(parts)
    return table[np.argsort(-_work(table, band), kind="stable")]


def dealt(table: Table, hands: int) -> Table:
    """The tasks in an order in which each of `hands` equal stretches has its share of the long ones.

    numba gives each thread one stretch under OpenMP, whatever its chunk size: longest first, the first would do most.
    """
    return np.concatenate([table[hand::hands] for hand in range(hands)]) if len(table) else table


def _of_sequence(number: int, span: Span, kv_heads: int, group: int) -> list[Table]:
    """Few queries: several heads of a group together. Many: one head, TILE_ROWS queries."""
    if not span.seq_q:
        return []
    together = max(1, min(group, TILE_ROWS // span.seq_q))
    heads = [
        (kv, kv * group + one, min(together, group - one))
        for kv in range(kv_heads)
        for one in range(0, group, together)
    ]
    rows = [(first, min(TILE_ROWS, span.seq_q - first)) for first in range(0, span.seq_q, TILE_ROWS)]
    where = (span.entry_q, span.first_q, span.seq_q, span.entry_k, span.first_k, span.seq_k, number)
    return [np.array([(*where, *head, *part) for part in rows for head in heads], np.int64)]


def _work(table: Table, band: tuple[int, int, bool]) -> Table:
    """Keys that a task visits, about."""
    left, right, bottom_right = band
    first = table[:, T_FIRST_ROW] + (table[:, T_SEQ_K] - table[:, T_SEQ_Q] if bottom_right else 0)
    last = first + table[:, T_ROWS] - 1
    end = np.minimum(table[:, T_SEQ_K], last + right + 1) if right >= 0 else table[:, T_SEQ_K]
    begin = np.maximum(0, first - left) if left >= 0 else np.zeros_like(first)
    return np.maximum(end - begin, 0)
