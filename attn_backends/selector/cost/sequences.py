"""The sequences of a batch, as far as a request knows them: maxima always, totals where the tensors are packed.

With totals, the batch is taken to hold one sequence of the greatest lengths, while the others share what is left evenly.
That is exact for equal lengths and for one prefill chunk among decodes; for anything else it is the estimate that a
request allows. Whoever has the lengths themselves counts with those.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from math import ceil
from typing import TYPE_CHECKING

from attn_backends.selector.tile_edges import LONGEST

if TYPE_CHECKING:
    from attn_backends.request import Request

Sequences = tuple[tuple[int, int, int], ...]  # (how many, seq_q, seq_k)
# Shares of the top of a bucket that stand for the calls in it: (of the sequences, of their lengths). A bucket reaches from a
# half, exclusive, to the whole of either; one of fewer sequences is entered as many times less far. Where the waves of tiles
# are few, the fastest kernel changes on the way.
SIZES = ((1.0, 0.75), (0.75, 1.0), (0.55, 0.55))
# The same between two edges of tiles: (share of the sequences, tokens below the top, share of the keys where they are not as many).
# Not the top itself, at which every tile is full: a kernel may fill them with other heads at lengths below.
LEAST_TILE = 64  # in narrower ranges, which other tiles may make, as many times fewer tokens below
INNER = {  # by whether query rows are few, and keys as many as new tokens
    (True, True): ((1.0, 16, 1.0), (0.75, 48, 1.0)),
    (True, False): ((1.0, 16, 0.75), (0.75, 48, 1.0), (0.55, 32, 0.55)),
    (False, True): ((1.0, 32, 1.0),),
    (False, False): ((1.0, 32, 0.75),),
}
FEW_ROWS = 1 << 16  # query rows over all heads; calls of more are alike all over their bucket to a model of waves
# What is timed of such larger calls: the top of a bucket is a power of two, which tiles of 64 and 128 divide and most lengths
# do not. These two leave every tile in use (64, 80, 128, 176, 192) partly filled, and have their mean in the middle.
TIMED_SIZES = ((1.0, 0.6), (1.0, 0.85))


def sequences_of(request: Request) -> Sequences:
    """The batch as groups of equal sequences."""
    batch, seq_q, seq_k = request.batch, request.seq_q, request.seq_k
    if (request.total_q is None and request.total_k is None) or batch < 2:
        return ((batch, seq_q, seq_k),)
    others = batch - 1
    low_q, more_q = _shared(request.total_q, seq_q, others)
    low_k, more_k = _shared(request.total_k, seq_k, others)
    cuts = sorted({0, more_q, more_k, others})
    groups = [
        (end - start, low_q + (start < more_q), low_k + (start < more_k)) for start, end in itertools.pairwise(cuts)
    ]
    first, *rest = groups
    if first[1:] == (seq_q, seq_k):  # equal lengths are one group, as where they are padded
        return ((1 + first[0], seq_q, seq_k), *rest)
    return ((1, seq_q, seq_k), *groups)


def within(sequences: Sequences, heads: int, begin: int, fewest: int) -> tuple[Sequences, ...]:
    """The sizes that rank a bucket with these sequences at its top: several for few query rows, else one.

    begin: the least new tokens that take as many tiles (`tile_edges.begin_of`). Equal sequences never have fewer.
    fewest: the least number of sequences in the bucket (`tile_edges.least_batch`).
    """
    few, between = _few(sequences, heads), between_tiles(sequences)
    batch = sum([count for count, _, _ in sequences])
    reach = 2.0 * (batch - fewest + 1) / max(batch, 1)  # of the sequences, 1 for a whole power of two
    if len(sequences) > 1 or not (few or between):
        return _sized(sequences, [(1.0 - (1.0 - many) * reach, long) for many, long in SIZES]) if few else (sequences,)
    ((_count, top, keys),) = sequences
    lengths = top - begin + 1
    if between:
        narrow = min(lengths, LEAST_TILE)
        inner = INNER[few, top == keys]
        sizes = [(many, less * narrow // LEAST_TILE, long) for many, less, long in inner]
    else:
        sizes = [(many, int(2.0 * (1.0 - long) * lengths), long) for many, long in SIZES]
    made = [(_size(sequences[0], 1.0 - (1.0 - many) * reach, less, long),) for many, less, long in sizes]
    return tuple(dict.fromkeys(made))


def _size(top: tuple[int, int, int], many: float, less: int, long: float) -> tuple[int, int, int]:
    """A share `many` of the sequences, `less` new tokens fewer, a share `long` of the keys; these stay no fewer, or as many."""
    count, new, keys = top
    inner = new - less
    seen = inner if keys == new else ceil(keys * long)
    return ceil(count * many), inner, max(seen, inner) if keys > new else seen


def between_tiles(sequences: Sequences) -> bool:
    """Whether a bucket with these sequences at its top is a range of new tokens that take as many tiles (`tile_edges`)."""
    (_count, new, _keys), *others = sequences
    return not others and LEAST_TILE < new <= LONGEST


def timed_within(sequences: Sequences, heads: int) -> tuple[Sequences, ...]:
    """The sizes whose times stand for a bucket: those of `within` for few query rows, else two lengths that nothing divides."""
    return _sized(sequences, SIZES if _few(sequences, heads) else TIMED_SIZES)


def _few(sequences: Sequences, heads: int) -> bool:
    return sum([count * new for count, new, _ in sequences]) * heads <= FEW_ROWS


def _sized(sequences: Sequences, sizes: Iterable[tuple[float, float]]) -> tuple[Sequences, ...]:
    sized = {
        tuple([(ceil(count * many), ceil(new * long), ceil(keys * long)) for count, new, keys in sequences]): None
        for many, long in sizes
    }
    return tuple(sized)


def _shared(total: int | None, longest: int, others: int) -> tuple[int, int]:
    """(least length, how many sequences have one token more) of the others, none longer than the longest."""
    if total is None:
        return longest, 0
    left = min(max(0, total - longest), longest * others)
    return divmod(left, others)
