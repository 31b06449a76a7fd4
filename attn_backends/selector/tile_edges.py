"""Lengths at which a declared tile begins: where a kernel takes one tile of queries more, the fastest one changes.

A power-of-two range of lengths holds calls of 5 and of 8 tiles of 128 queries, of 4 and of 6 of 192, and which of two kernels wastes
less changes several times on the way. So ranges of new tokens are cut at the multiples of the tiles that manifests declare
(`tiles`, docs/manifest.md), as long as one more is felt. Ranking looks at sizes from `begin_of` a range to its top.

Batches make waves of such tiles, so where tiles are declared and sequences have several new tokens, their powers of two are cut in the
middle. Decodes, whose batch may change with every step, keep theirs whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attn_backends.registry.manifest import Manifest
    from attn_backends.registry.tiles import Tiles

MOST_TILES = 16  # of a length: one more of so many is 6 % of the work
LONGEST = 3072  # new tokens: 16 of the largest tiles
_MIDDLES = tuple([3 * 2**power + 1 for power in range(20)])


def tile_edges(manifests: Iterable[Manifest]) -> tuple[int, ...]:
    """The first lengths of every range that the tiles of these manifests make, in order."""
    return _edges(tuple([tiles for manifest in manifests if (tiles := manifest.tiles)]))


def begin_of(length: int, manifests: Iterable[Manifest]) -> int:
    """The least length of the same power of two that takes as many tiles of each of these manifests as `length` does."""
    edges = tile_edges(manifests)
    before = bisect_right(edges, length)
    octave = (1 << (length - 1).bit_length() - 1) + 1 if length > 1 else length
    return max(octave, edges[before - 1]) if before else octave


def batch_edges(manifests: Iterable[Manifest]) -> tuple[int, ...]:
    """The first batches of the upper half of every power of two; none where nobody declares tiles."""
    return _MIDDLES if any(manifest.tiles for manifest in manifests) else ()


def least_batch(batch: int, seq_q: int, manifests: Iterable[Manifest]) -> int:
    """The least batch of the range of this one, for sequences of so many new tokens."""
    if batch < 2:
        return batch
    half = 1 << (batch - 1).bit_length() - 1
    middle = half + half // 2
    return middle + 1 if seq_q > 1 and half > 1 and batch > middle and batch_edges(manifests) else half + 1


@lru_cache(maxsize=256)  # every decision made anew asks for those that fit
def _edges(tiles: tuple[tuple[Tiles, ...], ...]) -> tuple[int, ...]:
    rows = {one.rows for of_one in tiles for one in of_one}
    return tuple(
        sorted({one * count + 1 for one in rows for count in range(1, MOST_TILES + 1) if one * count <= LONGEST})
    )
