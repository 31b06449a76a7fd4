"""What a tiled kernel computes of long sequences, and how long its tiles keep the busiest multiprocessor.

A tile of queries takes all keys that one of its rows sees, up to whole tiles of keys, and as long again as DRAIN keys for
filling and draining its pipeline. A causal kernel's later tiles are longer.

    equal tiles     waves of (multiprocessors x resident) tiles; the last one is as long as the tiles on its fullest one
    unequal tiles   max( the longest one, the mean per multiprocessor + TAIL longest ones )

A tile that has a multiprocessor to itself, where `resident` would fit, takes LONE of the time that all of them take together.
The constants were fitted with the manifests' shares (docs/measuring.md).
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from attn_backends.registry.tiles import Tiles
    from attn_backends.selector.cost.extent import Extent

DRAIN = 160  # keys
SPLIT_DRAIN = 400  # of a tile whose keys are split: it writes its part in float32 for a second kernel
LONE = 0.65
TAIL = {True: 0.2, False: 0.8}  # by whether tiles are balanced
# When a kernel splits keys (the rule of FlashAttention-3): tiles for less than 80 % of the multiprocessors, more than four
# tiles of keys; then the fewest parts whose waves are as full as 85 % of the fullest.
FEW, SHORTEST, FULL = 0.8, 4, 0.85


class Tiled(NamedTuple):
    """Pairs on the busiest multiprocessor x multiprocessors; parts that keys are split into."""

    pairs: float
    parts: int


def tiled(extent: Extent, heads: int, tiles: Tiles, units: int) -> Tiled:
    """Over all query heads, of the sequences that are not packed."""
    count = longest = 0
    total = 0.0  # keys of all tiles
    along = tiles.rows + tiles.keys - gcd(tiles.rows, tiles.keys)  # at two edges: rows, and what keys do not divide
    for one in extent.long:
        whole = -(-one.seen // tiles.keys) * tiles.keys
        mean, most = float(whole), whole
        if one.edges:
            mean = min(mean, one.pairs / one.seq_q + one.edges * along / 2)
            most = min(whole, one.reach + along)
        made = one.number * heads * -(-one.seq_q // tiles.rows)
        count += made
        total += made * mean
        longest = max(longest, most)
    if not count:
        return Tiled(0.0, 1)
    mean = total / count
    parts = _parts(count, longest // tiles.keys, units) if tiles.split and count < FEW * units else 1
    if parts == 1:
        keys = _busiest(count, mean + DRAIN, longest + DRAIN, tiles, units)
        return Tiled(keys * tiles.rows * units, 1)
    part = -(-longest // (tiles.keys * parts)) * tiles.keys
    mean = part if mean == longest else mean / parts + tiles.keys / 2
    keys = _busiest(count * parts, mean + SPLIT_DRAIN, part + SPLIT_DRAIN, tiles, units)
    return Tiled(keys * tiles.rows * units, parts)


def _parts(count: int, blocks: int, units: int) -> int:
    if blocks <= SHORTEST:
        return 1
    full = [count * parts / (-(-count * parts // units) * units) for parts in range(1, min(units, blocks) + 1)]
    enough = FULL * max(full)
    return next(parts for parts, share in enumerate(full, 1) if share >= enough)


def _busiest(count: int, mean: float, longest: float, tiles: Tiles, units: int) -> float:
    """Keys of all tiles of the busiest multiprocessor, one after the other."""
    resident = tiles.resident
    lone = LONE * resident if resident > 1 else 1.0
    if mean == longest:
        waves, rest = divmod(count, units * resident)
        return mean * (waves * resident + (max(lone, float(-(-rest // units))) if rest else 0.0))
    if count <= units:
        return longest * lone
    return max(longest * lone, count * mean / units + TAIL[tiles.balanced] * longest)
