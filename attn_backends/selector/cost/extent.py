"""`Extent`: everything about the sizes of a request that costs depend on, counted once per request.

Sequences of few query rows (decode) are packed: the query heads of a group share a tile, whose rows are padded to 16, and
their keys are split over multiprocessors. The others are `long`: what a kernel computes of them depends on its tiles
(`tiling.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attn_backends.selector.cost.sequences import Sequences, sequences_of
from attn_backends.selector.cost.visible import diagonal, keys_seen, reach, visible_pairs

if TYPE_CHECKING:
    from attn_backends.request import Request

TILE = 128  # keys for filling and draining the pipeline of a packed sequence
PACKED_ROWS = 64  # query rows of a group, up to which they share a tile
LEAST_ROWS = 16  # rows of the smallest matrix instruction
SPLIT_KEYS = 256  # keys that one part of a split sequence has at least


# Equal sequences that are not packed: (number, seq_q, keys of one that somebody sees, keys that a query sees in the mean,
# edges of the band of visible keys that tiles overlap, keys between them: all, where there is but one).
Long = tuple[int, int, int, float, int, int]


class Extent(NamedTuple):
    """Counts over all sequences; pairs are per query head, tokens are not multiplied by heads."""

    queries: int  # query tokens
    keys: int  # key tokens that somebody sees
    visible: int  # (query, key) pairs
    every: int  # pairs, hidden ones included
    packed: float  # pairs that a kernel computes of packed sequences
    short: int  # keys that it computes of them, a tile of each with them
    parts: float  # pieces of packed sequences that can run at the same time, over all heads
    split: bool  # whether most sequences are packed
    longest: int  # queries of the longest sequence that is not packed; 0 where all are
    long: tuple[Long, ...]


def extent_of(request: Request, sequences: Sequences | None = None) -> Extent:
    """Count. `sequences` are the real ones, where somebody knows them better than the request does."""
    heads = request.num_kv_heads
    group = request.num_q_heads // heads
    left, right = reach(request)
    edges = (left >= 0) + (right >= 0)
    queries = keys = visible = every = few = many = longest = short = 0
    packed = parts = 0.0
    long: list[Long] = []
    for count, seq_q, seq_k in sequences_of(request) if sequences is None else sequences:
        offset = diagonal(request, seq_q, seq_k)
        seen = keys_seen(seq_q, seq_k, left, right, offset)
        pairs = visible_pairs(seq_q, seq_k, left, right, offset)
        queries += count * seq_q
        keys += count * seen
        visible += count * pairs
        every += count * seq_q * seq_k
        rows = seq_q * group
        if rows <= PACKED_ROWS:
            few += count
            short += count * (seen + TILE)
            packed += count * max(rows, LEAST_ROWS) / group * (seen + TILE)
            parts += count * heads * max(1.0, seen / SPLIT_KEYS)
        else:
            between = left + right + 1 if edges == 2 else seen
            many += count
            longest = max(longest, seq_q)
            long.append((count, seq_q, seen, pairs / seq_q, edges, between))
    return Extent(queries, keys, visible, every, packed, short, parts, few > many, longest, tuple(long))
