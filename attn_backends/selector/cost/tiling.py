"""What a tiled kernel computes of long sequences, and how long its tiles keep the busiest multiprocessor.

A tile of queries takes all keys that one of its rows sees, up to whole tiles of keys, and as long again as its `drain` for
filling and draining its pipeline. A causal kernel's later tiles are longer. Where the query heads of a group share tiles, the
queries of one are as many fewer.

    equal tiles     waves of (multiprocessors x resident) tiles; the last one is as long as the tiles on its fullest one
    unequal tiles   max( the longest one, the mean per multiprocessor + TAIL longest ones )

A tile that has a multiprocessor to itself, where `resident` would fit, takes LONE of the time that all of them take together.
The constants were fitted with the manifests' shares (docs/measuring.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attn_backends.registry.tiles import Tiles
    from attn_backends.selector.cost.extent import Extent

SPLIT_DRAIN = 400  # of a tile whose keys are split: it writes its part in float32 for a second kernel
LONE = 0.65
TAIL = {True: 0.2, False: 0.8}  # by whether tiles are balanced
# When a kernel splits keys (the rule of FlashAttention-3): tiles for less than 80 % of those that the multiprocessors work on
# at the same time, more than four tiles of keys; then the fewest parts whose waves are as full as 85 % of the fullest.
FEW, SHORTEST, FULL = 0.8, 4, 0.85
# When a kernel packs the query heads of a group into tiles (the rule of FlashAttention-3): without, less than 90 % as much of
# their rows is in use; and always in ragged calls. Rows of several heads come and go one by one, where others are one copy.
ALWAYS, FILL, SCATTERED = "always", 0.9, 140  # keys


def tiled(extent: Extent, heads: int, group: int, ragged: bool, tiles: Tiles, units: int) -> tuple[float, int]:
    """(pairs on the busiest multiprocessor x multiprocessors, parts that keys are split into).

    Over all query heads, `group` of them to a KV head, of the sequences that are not packed. `ragged`: no tensor has a
    dimension for the sequences.
    """
    long = extent.long
    if not long:
        return 0.0, 1
    rows, keys, drain = tiles.rows, tiles.keys, tiles.drain
    if tiles.packs is None or group == 1 or not shares(tiles, extent.longest, group, ragged):
        group, along = 1, rows + tiles.edge
    else:
        heads, along = heads // group, -(-rows // group) + tiles.edge
        drain += 0 if tiles.packs == ALWAYS else SCATTERED
    count = longest = 0
    total = 0.0  # keys of all tiles
    for number, seq_q, seen, visible, edges, reach in long:
        most = -(-seen // keys) * keys
        mean: float = most
        if edges:  # compared by hand, here and below: a call of min() takes as long as all the rest of a line
            touched = visible + edges * along / 2
            mean = touched if touched < mean else mean
            most = reach + along if reach + along < most else most
        made = number * heads * -(-seq_q * group // rows)
        count += made
        total += made * mean
        longest = most if most > longest else longest
    if not count:
        return 0.0, 1
    mean = total / count
    slots = units * tiles.resident
    parts = parts_of(count, longest // keys, slots) if tiles.split and count < FEW * slots else 1
    if parts == 1:
        return _busiest(count, mean + drain, longest + drain, tiles, units) * tiles.work * units, 1
    part = -(-longest // (keys * parts)) * keys
    mean = part if mean == longest else min(part, mean / parts + keys / 2)
    return _busiest(count * parts, mean + SPLIT_DRAIN, part + SPLIT_DRAIN, tiles, units) * tiles.work * units, parts


def shares(tiles: Tiles, seq_q: int, group: int, ragged: bool) -> bool:
    """Whether the query heads of a group share tiles that may be shared; `seq_q`: of the longest sequence."""
    return ragged or tiles.packs == ALWAYS or _full(seq_q, tiles.rows) < FILL * _full(seq_q * group, tiles.rows)


def parts_of(count: int, blocks: int, units: int) -> int:
    """How many parts the keys of so many tiles are split into; `blocks`: tiles of keys that the longest one has.

    Within a wave, more parts fill it more: the fullest one is the last of some wave.
    """
    if blocks <= SHORTEST:
        return 1
    most = min(units, blocks)
    waves = range(1, -(-count * most // units) + 1)
    enough = FULL * max([_full(count * min(most, wave * units // count), units) for wave in waves])
    return next(parts for parts in range(1, most + 1) if _full(count * parts, units) >= enough)


def _full(count: int, units: int) -> float:
    """How full the waves of so many tiles are, or the tiles of so many rows."""
    return count / (-(-count // units) * units)


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
