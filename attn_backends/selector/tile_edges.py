"""Lengths at which a declared tile begins: where a kernel takes one tile of queries more, the fastest one changes.

A power-of-two range of lengths holds calls of 5 and of 8 tiles of 128 queries, of 4 and of 6 of 192, and which of two kernels wastes
less changes several times on the way. So ranges of new tokens are cut at the multiples of the tiles that manifests declare
(`tiles`, docs/manifest.md), as long as one more is felt.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attn_backends.registry.manifest import Manifest

MOST_TILES = 16  # of a length: one more of so many is 6 % of the work
LONGEST = 3072  # new tokens: 16 of the largest tiles


def tile_edges(manifests: Iterable[Manifest]) -> tuple[int, ...]:
    """The first lengths of every range that the tiles of these manifests make, in order."""
    rows = {tiles.rows for manifest in manifests for tiles in manifest.tiles}
    return tuple(
        sorted({one * count + 1 for one in rows for count in range(1, MOST_TILES + 1) if one * count <= LONGEST})
    )
