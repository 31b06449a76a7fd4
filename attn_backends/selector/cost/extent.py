"""`Extent`: everything about the sizes of a request that costs depend on, counted once per request.

Two counts of pairs: `visible`, which is what the mathematics asks for, and `tiled`, which is what a tiled kernel computes.
It works on tiles of 128 x 128 and skips those that nobody sees, so that it computes about half a tile more per row at
every edge of the band; and every tile of queries pays for filling and draining its pipeline, about one tile of keys.
Few query rows (decode) are packed: the query heads of a group share a tile, whose rows are padded to 16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attn_backends.selector.cost.sequences import Sequences, sequences_of
from attn_backends.selector.cost.visible import diagonal, keys_seen, reach, visible_pairs

if TYPE_CHECKING:
    from attn_backends.request import Request

TILE = 128
PACKED_ROWS = 64  # query rows of a group, up to which they share a tile
LEAST_ROWS = 16  # rows of the smallest matrix instruction
SPLIT_KEYS = 256  # keys that one part of a split sequence has at least


class Extent(NamedTuple):
    """Counts over all sequences; pairs are per query head, tokens are not multiplied by heads."""

    queries: int  # query tokens
    keys: int  # key tokens that somebody sees
    visible: int  # (query, key) pairs
    tiled: float  # pairs that a tiled kernel computes, per query head
    every: int  # pairs, hidden ones included
    parts: float  # pieces of work that can run at the same time, over all heads
    split: bool  # whether most sequences are decoded, their keys split over multiprocessors


def extent_of(request: Request, sequences: Sequences | None = None) -> Extent:
    """Count. `sequences` are the real ones, where somebody knows them better than the request does."""
    group = request.num_q_heads // request.num_kv_heads
    left, right = reach(request)
    edges = (left >= 0) + (right >= 0)
    queries = keys = visible = every = packed = whole = 0
    tiled = parts = 0.0
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
            packed += count
            tiled += count * max(rows, LEAST_ROWS) / group * (seen + TILE)
            parts += count * request.num_kv_heads * max(1.0, seen / SPLIT_KEYS)
        else:
            whole += count
            tiled += count * (min(pairs + edges * seq_q * (TILE // 2), seq_q * seq_k) + seq_q * TILE)
            parts += count * request.num_q_heads * -(-seq_q // TILE)
    return Extent(queries, keys, visible, tiled, every, parts, packed > whole)
