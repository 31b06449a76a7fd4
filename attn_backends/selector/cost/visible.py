"""How many keys the queries of one sequence see, under causal masks and windows: exact counts in closed form.

Query i of Sq stands at key position p = i + offset and sees the keys j of [0, Sk) with p - left <= j <= p + right; -1 is
unbounded on that side. The offset is Sk - Sq on a bottom-right diagonal, 0 on a top-left one.

    pairs = sum over i of [ clamp(p + right + 1, 0, Sk) - clamp(p - left, 0, Sk) ]

Both sums run over an arithmetic progression, so each is the difference of two values of one quadratic (`_sum_below`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attn_backends.request import Request

UNBOUNDED = -1


def reach(request: Request) -> tuple[int, int]:
    """(left, right): how many keys before and behind its own position a query sees, -1 = all of them."""
    return request.window_left, 0 if request.causal else request.window_right


def diagonal(request: Request, seq_q: int, seq_k: int) -> int:
    """Key position of the first query of a sequence."""
    return seq_k - seq_q if request.causal_alignment == "bottom_right" else 0


def visible_pairs(seq_q: int, seq_k: int, left: int, right: int, offset: int) -> int:
    """(query, key) pairs that are visible; rows that see nothing count nothing."""
    if left < 0 and right < 0:
        return seq_q * seq_k
    pairs = seq_q * seq_k
    if right >= 0:
        first = offset + right + 1
        pairs = _sum_below(first + seq_q, seq_k) - _sum_below(first, seq_k)
    if left >= 0:
        first = offset - left
        pairs -= _sum_below(first + seq_q, seq_k) - _sum_below(first, seq_k)
    return pairs


def keys_seen(seq_q: int, seq_k: int, left: int, right: int, offset: int) -> int:
    """Keys that at least one query sees: what a kernel has to read of K and V."""
    if seq_q == 0:
        return 0
    first = offset - left if 0 <= left < offset else 0
    end = offset + seq_q + right
    if right < 0 or end > seq_k:
        end = seq_k
    return end - first if end > first else 0


def _sum_below(end: int, top: int) -> int:
    """Sum of clamp(x, 0, top) for all x < end."""
    if end <= 0:
        return 0
    if end <= top + 1:
        return end * (end - 1) // 2
    return top * (top + 1) // 2 + (end - 1 - top) * top
