"""Which keys a program reads: the work of a batch cut into equal items, from lengths that only the device knows.

A sequence has `tiles` tiles of query rows, and each of them reads a span of at most `steps` tiles of keys. The spans are
cut into splits of nearly equal length, so that an item is (sequence, query tile, split). How finely they are cut is worked
out by every program for itself, alike: j splits of the longest span make about

    items(j) = KV heads * (work / longest * j + tiles * min(1/2, (longest - work / tiles) * j / longest))
    time(j)  ~ ceil(items(j) / slots) * (longest / j + STARTUP)

    work = sum of tiles * steps, longest = the largest steps

where `slots` programs run at a time; the j of the least time is taken. The second term of the items is the part of a split that a
shorter span has over, and is a program all the same: of spans that are nearly as long as the longest what they lack, of others a
half on average. Every tile is an item at least. The grid has room for any lengths: programs without
an item end at once. Under batch invariance a sequence is cut by its own length alone.

Packed batches mix prompts, which keep the arithmetic busy, with decodes, which keep the memory busy. Neighbours in the grid run
side by side, so there the two come in turn, evenly mixed; some decodes come last, which are short and fill the slots that the last
prompts leave empty.
"""

import triton
import triton.language as tl

STARTUP: tl.constexpr = tl.constexpr(3.0)  # what an item costs besides its keys, in tiles of keys
MOST_SPLITS: tl.constexpr = tl.constexpr(256)
INVARIANT_SPLITS: tl.constexpr = tl.constexpr(16)
FEW: tl.constexpr = tl.constexpr(16)  # query rows up to which a sequence of a packed batch counts as a decode: the least tile of a product


@triton.jit
def steps_of(seq_q, seq_k, reach, BLOCK_N: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, BOTTOM_RIGHT: tl.constexpr):
    """Key tiles that one query tile may have to visit, at least 1.

    reach: keys from the first that a query tile's window shows to the last; without a right limit, besides its queries.
    """
    span = seq_k
    if LEFT and RIGHT:
        span = tl.minimum(seq_k, reach)
    elif LEFT and BOTTOM_RIGHT:
        span = tl.minimum(seq_k, reach + seq_q)
    steps = tl.cdiv(span, BLOCK_N)
    if LEFT:
        steps += 1  # the first key that is seen need not begin a tile
    return tl.maximum(steps, 1)


@triton.jit
def lengths_of(sequence, inside, starts_q, lengths_k, longest_q, longest_k, PACKED_Q: tl.constexpr):
    """(queries, keys) of sequences; 0 outside the batch. Keys that no block table has room for do not exist."""
    seq_q = tl.where(inside, longest_q, 0)
    if PACKED_Q:
        seq_q = tl.load(starts_q + sequence + 1, mask=inside, other=0) - tl.load(starts_q + sequence, mask=inside, other=0)
    seq_k = tl.minimum(tl.load(lengths_k + sequence, mask=inside, other=0), longest_k)
    return seq_q, seq_k


@triton.jit
def steps_per_split(work, tiles, longest, kv_heads, slots, most_items):
    """Key tiles per split, for the least time of the whole batch of so many query tiles."""
    splits = 1 + tl.arange(0, MOST_SPLITS)
    steps = tl.cdiv(longest, splits).to(tl.float32)
    full = (kv_heads * work / longest.to(tl.float32)) * splits.to(tl.float32)
    lacking = longest.to(tl.float32) - work / tl.maximum(tiles, 1.0)
    items = full + kv_heads * tiles * tl.minimum(lacking / steps, 0.5)
    items = tl.maximum(items, kv_heads * (tiles + splits.to(tl.float32) - 1.0))
    items = tl.where(splits == 1, kv_heads * tiles, items)
    time = tl.ceil(items / slots) * (steps + STARTUP)
    legal = (splits == 1) | ((full <= most_items) & (splits <= longest))
    time = tl.where(legal, time, float("inf"))
    best = tl.min(tl.where(time == tl.min(time, 0), splits, MOST_SPLITS), 0)
    return tl.cdiv(longest, best)


@triton.jit
def splits_of(steps, per_split, INVARIANT: tl.constexpr):
    """Splits of a span of `steps` key tiles."""
    if INVARIANT:
        return tl.minimum(steps, INVARIANT_SPLITS)
    return tl.cdiv(steps, per_split)


@triton.jit
def turn_of(place, many, few, kv_heads, slots):
    """(whether the item at a place in the grid is a decode's, its number among items of its kind).

    many, few: items of prompts and of decodes. Half a wave of decodes, at most half of them, comes behind all others.
    """
    early = few - tl.minimum(few // 2, slots // (2 * kv_heads))
    mixed = many + early
    before = (place.to(tl.int64) * early // tl.maximum(mixed, 1)).to(tl.int32)
    after = ((place.to(tl.int64) + 1) * early // tl.maximum(mixed, 1)).to(tl.int32)
    is_mixed = place < mixed
    is_few = (after > before) | (place >= mixed)
    number = tl.where(is_few, tl.where(is_mixed, before, place - many), place - before)
    return is_few, number


@triton.jit
def find_item(
    place, starts_q, lengths_k, batch, group, longest_q, longest_k, reach, kv_heads, slots, most_items,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BATCH_BLOCK: tl.constexpr, PACKED_Q: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, BOTTOM_RIGHT: tl.constexpr, INVARIANT: tl.constexpr,
):
    """(item, sequence, items and query tiles before the sequence's, key tiles per split), of a place in the grid.

    The sequence is `batch` where there is no such item, and then all query tiles are before it.
    """
    lanes = tl.arange(0, BATCH_BLOCK)
    per_split = 1
    if not INVARIANT:
        work = tl.zeros([], dtype=tl.float32)  # may leave 32 bits
        every_tile = tl.zeros([], dtype=tl.float32)
        longest = tl.full([], 1, dtype=tl.int32)
        for first in range(0, batch, BATCH_BLOCK):
            sequence = first + lanes
            seq_q, seq_k = lengths_of(sequence, sequence < batch, starts_q, lengths_k, longest_q, longest_k, PACKED_Q)
            tiles = tl.cdiv(seq_q * group, BLOCK_M)
            steps = steps_of(seq_q, seq_k, reach, BLOCK_N, LEFT, RIGHT, BOTTOM_RIGHT)
            work += tl.sum(tiles.to(tl.float32) * steps.to(tl.float32), 0)
            if PACKED_Q:
                every_tile += tl.sum(tiles.to(tl.float32), 0)
            longest = tl.maximum(longest, tl.max(tl.where(tiles > 0, steps, 1), 0))
        if not PACKED_Q:
            every_tile += batch * tl.cdiv(longest_q * group, BLOCK_M)
        per_split = steps_per_split(work, every_tile, longest, kv_heads, slots, most_items)
    TWO_KINDS: tl.constexpr = PACKED_Q and BLOCK_M > FEW
    is_few = False
    number = place  # of the item, or of it among those of its kind
    if TWO_KINDS:
        every = tl.zeros([], dtype=tl.int32)
        few = tl.zeros([], dtype=tl.int32)
        for first in range(0, batch, BATCH_BLOCK):
            sequence = first + lanes
            seq_q, seq_k = lengths_of(sequence, sequence < batch, starts_q, lengths_k, longest_q, longest_k, PACKED_Q)
            steps = steps_of(seq_q, seq_k, reach, BLOCK_N, LEFT, RIGHT, BOTTOM_RIGHT)
            items = tl.cdiv(seq_q * group, BLOCK_M) * splits_of(steps, per_split, INVARIANT)
            every += tl.sum(items, 0)
            few += tl.sum(tl.where(seq_q * group <= FEW, items, 0), 0)
        is_few, number = turn_of(place, every - few, few, kv_heads, slots)
    before = tl.zeros([], dtype=tl.int32)
    alike_before = tl.zeros([], dtype=tl.int32)  # items of its kind
    tiles_before = tl.zeros([], dtype=tl.int32)
    found = tl.zeros([], dtype=tl.int32)
    counted = tl.zeros([], dtype=tl.int32)
    for first in range(0, batch, BATCH_BLOCK):
        sequence = first + lanes
        inside = sequence < batch
        seq_q, seq_k = lengths_of(sequence, inside, starts_q, lengths_k, longest_q, longest_k, PACKED_Q)
        tiles = tl.cdiv(seq_q * group, BLOCK_M)
        items = tiles * splits_of(steps_of(seq_q, seq_k, reach, BLOCK_N, LEFT, RIGHT, BOTTOM_RIGHT), per_split, INVARIANT)
        alike = items
        if TWO_KINDS:
            alike = tl.where((seq_q * group <= FEW) == is_few, items, 0)
        passed = inside & (counted + tl.cumsum(alike, 0) <= number)
        found += tl.sum(passed.to(tl.int32), 0)
        before += tl.sum(tl.where(passed, items, 0), 0)
        alike_before += tl.sum(tl.where(passed, alike, 0), 0)
        if PACKED_Q:
            tiles_before += tl.sum(tl.where(passed, tiles, 0), 0)
        counted += tl.sum(alike, 0)
    item = before + number - alike_before
    if not PACKED_Q:
        tiles_before = found * tl.cdiv(longest_q * group, BLOCK_M)
    return item, found, before, tiles_before, per_split
