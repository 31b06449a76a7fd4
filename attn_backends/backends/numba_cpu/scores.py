"""From products q.k to scores and back to weights, one row of a tile at a time.

    x = scale * q.k;  x = cap * tanh(x / cap);  score = x + bias - slope * |distance|

Causal and windows leave each row one stretch of keys, so no score is compared with them; masks in memory hide the others.
Columns and keys are counted without a sign (`place`): numba lets a signed index count from the end, and such a loop does
not vectorise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from attn_backends.backends.numba_cpu.flags import (
    BIASED,
    BLOCK_K,
    BLOCK_Q,
    BLOCKED,
    BOTTOM_RIGHT,
    CAP,
    CAPPED,
    FAST,
    INNER,
    INNER_SCALE,
    LARGEST,
    LEFT,
    MASKED,
    RIGHT,
    SCALE,
    SLOPED,
)
from attn_backends.backends.numba_cpu.numbers import LOG2E, ZERO, exp2, tanh

MINUS_INF = np.float32(-np.inf)


place = np.uint64


@njit(inline="always")
def stretch(asked: Any, i: Any, seq_q: Any, seq_k: Any) -> Any:
    """(first, end) of the keys that causal and windows leave to query i; LEFT and RIGHT are -1 where unbounded.

    0 <= first <= end <= seq_k, also for a query whose window stands behind the last key.
    """
    position = i + (seq_k - seq_q if asked[BOTTOM_RIGHT] else 0)
    first = min(max(0, position - asked[LEFT]), seq_k) if asked[LEFT] >= 0 else 0
    end = min(seq_k, position + asked[RIGHT] + 1) if asked[RIGHT] >= 0 else seq_k
    return first, max(first, end)


@njit(fastmath=FAST)
def scale_row(s: Any, r: Any, begin: Any, end: Any, asked: Any, numbers: Any) -> None:
    """Scale and softcap of columns begin .. end of row r, in place. All columns and keys here are `place`s."""
    if asked[CAPPED]:
        cap, inner = numbers[CAP], numbers[INNER_SCALE]
        for c in range(begin, end):
            s[r, c] = cap * tanh(s[r, c] * inner)
    else:
        scale = numbers[SCALE]
        for c in range(begin, end):
            s[r, c] *= scale


@njit(fastmath=FAST)
def add_to_row(
    s: Any, r: Any, begin: Any, end: Any, where: Any, key: Any, asked: Any, bias: Any, slope: Any, distance: Any
) -> None:
    """Bias and ALiBi, in place.

    where: (sequence, head, query) of the row; key: the key of column 0, `distance` its place behind the query's own
    """
    sequence, head, i = where
    if asked[BIASED]:
        for c in range(begin, end):
            added = bias[sequence, head, i, key + c]
            s[r, c] = MINUS_INF if added == MINUS_INF else s[r, c] + added  # whatever K held: it is hidden
    if asked[SLOPED]:
        for c in range(begin, end):
            s[r, c] -= slope * np.float32(abs(distance + np.int64(c)))


@njit
def hide_in_row(
    s: Any, r: Any, begin: Any, end: Any, where: Any, key: Any, asked: Any, mask: Any, blocks: Any, inner: Any
) -> None:
    """-inf for what a bool mask or a block mask hides; `where` and `key` as above."""
    sequence, head, i = where
    if asked[MASKED]:
        for c in range(begin, end):
            if not mask[sequence, head, i, key + c]:
                s[r, c] = MINUS_INF
    if asked[BLOCKED]:
        row, width = i // asked[BLOCK_Q], place(asked[BLOCK_K])
        for c in range(begin, end):
            if not blocks[sequence, head, row, (key + c) // width]:
                s[r, c] = MINUS_INF
    if asked[INNER]:
        for c in range(begin, end):
            if not inner[sequence, head, i, key + c]:
                s[r, c] = MINUS_INF


@njit(fastmath=LARGEST)
def largest_of(s: Any, r: Any, begin: Any, end: Any, at_least: Any) -> Any:
    """The largest score of the row, or `at_least`."""
    top = at_least
    for c in range(begin, end):
        top = max(top, s[r, c])
    return top


@njit(fastmath=FAST)
def weigh_row(s: Any, r: Any, begin: Any, end: Any, top: Any) -> Any:
    """exp(score - top) in place, 0 outside begin .. end; returns their sum."""
    shift = top if top > MINUS_INF else ZERO
    total = ZERO
    for c in range(place(0), begin):
        s[r, c] = ZERO
    for c in range(begin, end):
        weight = exp2((s[r, c] - shift) * LOG2E)
        s[r, c] = weight
        total += weight
    for c in range(end, place(s.shape[1])):
        s[r, c] = ZERO
    return total
