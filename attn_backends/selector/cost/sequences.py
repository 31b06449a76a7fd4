"""The sequences of a batch, as far as a request knows them: maxima always, totals where the tensors are packed.

With totals, the batch is taken to hold one sequence of the greatest lengths, while the others share what is left evenly.
That is exact for equal lengths and for one prefill chunk among decodes; for anything else it is the estimate that a
request allows. Whoever has the lengths themselves counts with those.
"""

from __future__ import annotations

import itertools
from math import ceil
from typing import TYPE_CHECKING

from attn_backends.selector.tile_edges import LONGEST

if TYPE_CHECKING:
    from attn_backends.request import Request

Sequences = tuple[tuple[int, int, int], ...]  # (how many, seq_q, seq_k)
# Shares of the top of a bucket that stand for the calls in it: (of the sequences, of their lengths). A bucket reaches from a
# half, exclusive, to the whole of either. Where the waves of tiles are few, the fastest kernel changes on the way.
SIZES = ((1.0, 0.75), (0.75, 1.0), (0.55, 0.55))
# The same between two edges of tiles, 64 tokens apart or more: (share of the sequences, tokens below the top). Not the top itself, at
# which every tile is full: a kernel may fill them with other heads at lengths below.
LEAST_TILE = 64
INNER = ((1.0, 32),)
INNER_OF_FEW = ((1.0, 16), (0.75, 48))
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
    return ((1, seq_q, seq_k), *groups)


def within(sequences: Sequences, heads: int) -> tuple[Sequences, ...]:
    """The sizes that rank a bucket with these sequences at its top: several for few query rows, else one."""
    few = _few(sequences, heads)
    if between_tiles(sequences):
        ((count, new, _keys),) = sequences
        inner = INNER_OF_FEW if few else INNER
        return tuple([((ceil(count * many), new - less, new - less),) for many, less in inner])
    return _sized(sequences, SIZES) if few else (sequences,)


def between_tiles(sequences: Sequences) -> bool:
    """Whether a bucket with these sequences at its top is a range of lengths that take as many tiles (`tile_edges`)."""
    (_count, new, keys), *others = sequences
    return not others and new == keys and LEAST_TILE < new <= LONGEST


def timed_within(sequences: Sequences, heads: int) -> tuple[Sequences, ...]:
    """The sizes whose times stand for a bucket: those of `within` for few query rows, else two lengths that nothing divides."""
    return _sized(sequences, SIZES if _few(sequences, heads) else TIMED_SIZES)


def _few(sequences: Sequences, heads: int) -> bool:
    return sum([count * new for count, new, _ in sequences]) * heads <= FEW_ROWS


def _sized(sequences: Sequences, sizes: tuple[tuple[float, float], ...]) -> tuple[Sequences, ...]:
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
