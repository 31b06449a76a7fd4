"""One task: some query rows of one KV head against all keys that they may see, tile by tile.

    for every tile of TILE_KEYS keys:
        s   = q k^T                                   products.py
        m'  = max(m, rowmax(score(s)))                scores.py
        p   = exp(score(s) - m')
        l   = l exp(m - m') + rowsum(p)
        acc = acc exp(m - m') + p v                   products.py
    out = acc / l,   lse = m + ln(l)

Rows are those of one query head, or of several that share the KV head where a sequence has few queries: K and V are then
read once for all of them. q [R, D], k [TILE_KEYS, D], v [TILE_KEYS, Dv], s [R, TILE_KEYS], all float32 and local.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from attn_backends.backends.numba_cpu.flags import (
    BIASED,
    BLOCKED,
    BOTTOM_RIGHT,
    FAST,
    HALVES,
    MASKED,
    SLOPED,
    SUNK,
    T_ENTRY_K,
    T_ENTRY_Q,
    T_FIRST_HEAD,
    T_FIRST_K,
    T_FIRST_Q,
    T_FIRST_ROW,
    T_HEADS,
    T_KV_HEAD,
    T_ROWS,
    T_SEQ_K,
    T_SEQ_Q,
    T_SEQUENCE,
)
from attn_backends.backends.numba_cpu.numbers import LOG2E, ONE, ZERO, exp2
from attn_backends.backends.numba_cpu.products import scores_of, sums_of
from attn_backends.backends.numba_cpu.rows import all_finite, copy_row, load_keys
from attn_backends.backends.numba_cpu.scores import (
    MINUS_INF,
    add_to_row,
    hide_in_row,
    largest_of,
    place,
    scale_row,
    stretch,
    weigh_row,
)

TILE_KEYS = 128


@njit(fastmath=FAST)
def attend(task: Any, tensors: Any, masks: Any, asked: Any, numbers: Any, out: Any, lse: Any) -> None:
    """Write the task's rows of out [entries, heads, tokens, Dv] and lse [entries, heads, tokens].

    tensors: q, k, v as [entries, heads, tokens, width], and the block table
    masks: bias, mask, blocks, inner as [sequences, heads, queries, keys], slopes [sequences, heads], sinks [heads]
    """
    q, k, v, table = tensors
    sinks = masks[5]
    rows, first_row = task[T_ROWS], task[T_FIRST_ROW]
    count = rows * task[T_HEADS]
    own = _queries(task, q, asked[HALVES])
    acc = np.zeros((count, v.shape[3]), np.float32)
    product = np.empty((count, v.shape[3]), np.float32)
    top = np.full(count, MINUS_INF)
    total = np.zeros(count, np.float32)
    fade = np.empty(count, np.float32)
    keys = np.empty((TILE_KEYS, k.shape[3]), np.float32)
    values = np.empty((TILE_KEYS, v.shape[3]), np.float32)
    s = np.empty((count, TILE_KEYS), np.float32)
    where = (task[T_ENTRY_K], task[T_FIRST_K], task[T_SEQUENCE])
    begin, _ = stretch(asked, first_row, task[T_SEQ_Q], task[T_SEQ_K])
    _, end = stretch(asked, first_row + rows - 1, task[T_SEQ_Q], task[T_SEQ_K])
    for first in range(begin, end, TILE_KEYS):
        held = min(TILE_KEYS, end - first)
        load_keys(k, table, asked, where, task[T_KV_HEAD], first, held, keys)
        scores_of(own, keys, held, s)
        _weigh(task, s, first, held, masks, asked, numbers, top, total, fade)
        load_keys(v, table, asked, where, task[T_KV_HEAD], first, held, values)
        if all_finite(values):
            sums_of(s, values, held, product)
        else:
            _sums_of_seen(s, values, held, product)
        for r in range(count):
            for d in range(acc.shape[1]):
                acc[r, d] = acc[r, d] * fade[r] + product[r, d]
    for r in range(count):
        head = task[T_FIRST_HEAD] + r // rows
        token = task[T_FIRST_Q] + first_row + r % rows
        sink = sinks[head] if asked[SUNK] else MINUS_INF
        _finish(acc, r, top[r], total[r], sink, out, lse, (task[T_ENTRY_Q], head, token))


@njit
def _queries(task: Any, q: Any, halves: Any) -> Any:
    """The task's rows of q: [heads x rows, D], head by head."""
    rows = task[T_ROWS]
    own = np.empty((rows * task[T_HEADS], q.shape[3]), np.float32)
    for r in range(own.shape[0]):
        head, token = task[T_FIRST_HEAD] + r // rows, task[T_FIRST_Q] + task[T_FIRST_ROW] + r % rows
        copy_row(q, task[T_ENTRY_Q], head, token, own, r, halves)
    return own


@njit(fastmath=FAST)
def _weigh(
    task: Any, s: Any, first: Any, held: Any, masks: Any, asked: Any, numbers: Any, top: Any, total: Any, fade: Any
) -> None:
    """Products to weights, in place; each row's maximum, its sum and what older weights shrink by."""
    bias, mask, blocks, inner, slopes, _ = masks
    rows, sequence = task[T_ROWS], task[T_SEQUENCE]
    for r in range(s.shape[0]):
        i, head = task[T_FIRST_ROW] + r % rows, task[T_FIRST_HEAD] + r // rows
        low, high = stretch(asked, i, task[T_SEQ_Q], task[T_SEQ_K])
        from_left = min(max(low - first, 0), held)
        begin, end = place(from_left), place(max(min(high - first, held), from_left))
        where, key = (sequence, head, i), place(first)
        scale_row(s, r, begin, end, asked, numbers)
        if asked[BIASED] or asked[SLOPED]:
            slope = slopes[sequence, head] if asked[SLOPED] else ZERO
            add_to_row(s, r, begin, end, where, key, asked, bias, slope, _distance(task, asked, i, first))
        if asked[MASKED] or asked[BLOCKED]:
            hide_in_row(s, r, begin, end, where, key, asked, mask, blocks, inner)
        older = top[r]
        newest = largest_of(s, r, begin, end, older)
        fade[r] = exp2((older - newest) * LOG2E) if newest > MINUS_INF else ONE
        total[r] = total[r] * fade[r] + weigh_row(s, r, begin, end, newest)
        top[r] = newest


@njit(inline="always")
def _distance(task: Any, asked: Any, i: Any, key: Any) -> Any:
    """How far a key stands behind query i."""
    offset = task[T_SEQ_K] - task[T_SEQ_Q] if asked[BOTTOM_RIGHT] else 0
    return key - (i + offset)


@njit(fastmath=FAST)
def _sums_of_seen(weights: Any, values: Any, held: Any, product: Any) -> None:
    """weights @ values where some value is inf or NaN: such a key is added for the rows that give it a weight alone.

    The other rows get, bit for bit, what they get where its values are finite.
    """
    finite = values.copy()
    far = np.zeros(values.shape[0], np.bool_)
    for c in range(values.shape[0]):
        for d in range(values.shape[1]):
            far[c] |= not np.isfinite(values[c, d])
        if far[c]:
            finite[c, :] = ZERO
    sums_of(weights, finite, held, product)
    for r in range(weights.shape[0]):
        for c in range(weights.shape[1]):
            if far[c] and weights[r, c] != ZERO:
                for d in range(values.shape[1]):
                    product[r, d] += weights[r, c] * values[c, d]


@njit(fastmath=FAST)
def _finish(acc: Any, r: Any, top: Any, total: Any, sink: Any, out: Any, lse: Any, where: Any) -> None:
    """Write row r of the sums to `where` in out and its LSE; the sink enters here, once. What saw nothing is 0.

    A row that saw a key has a sum of 1 or more, or NaN: no maximum tells the two apart where every score is NaN.
    """
    entry, head, token = where
    newest = max(top, sink)
    if total == ZERO and sink == MINUS_INF:
        lse[entry, head, token] = MINUS_INF
        for d in range(acc.shape[1]):
            out[entry, head, token, d] = ZERO
        return
    fade = exp2((top - newest) * LOG2E)
    whole = total * fade + (exp2((sink - newest) * LOG2E) if sink != MINUS_INF else ZERO)
    lse[entry, head, token] = newest + np.float32(np.log(whole))
    for d in range(acc.shape[1]):
        out[entry, head, token, d] = acc[r, d] * fade / whole
