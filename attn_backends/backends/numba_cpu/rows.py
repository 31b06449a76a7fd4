"""Rows of K, V and q out of memory: float32, one below the other, from dense, packed or paged tensors of any strides.

A row as an array of its own would count references, which threads share; and numba does not know that elements of a row
lie side by side. So rows are read by address where they do, element by element where not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from attn_backends.backends.numba_cpu.flags import BFLOAT16, DENSE, FAST, FLOAT16, HALVES, PAGE, PAGED
from attn_backends.backends.numba_cpu.numbers import ZERO, bits_as_float, bits_at, float_at, half_as_float


@njit(inline="always")
def as_float(value: Any, halves: Any) -> Any:
    """A stored number: float32 itself, or the 16 bits of the format that `halves` names."""
    if halves == DENSE:
        return np.float32(value)
    if halves == BFLOAT16:
        return bits_as_float(np.int32(value) << np.int32(16))
    return half_as_float(np.uint16(value))


@njit(fastmath=FAST)
def copy_row(source: Any, entry: Any, head: Any, token: Any, into: Any, r: Any, halves: Any) -> None:
    """Row `token` of source [entries, heads, tokens, width] into row r of `into`, as float32."""
    steps = source.strides
    address = np.uintp(source.ctypes.data + entry * steps[0] + head * steps[1] + token * steps[2])
    if steps[3] != source.itemsize or address % np.uintp(source.itemsize):
        for d in range(into.shape[1]):
            into[r, d] = as_float(source[entry, head, token, d], halves)
    elif halves == DENSE:
        for d in range(into.shape[1]):
            into[r, d] = float_at(address, np.uintp(d))
    elif halves == BFLOAT16:
        for d in range(into.shape[1]):
            into[r, d] = as_float(bits_at(address, np.uintp(d)), BFLOAT16)
    else:
        for d in range(into.shape[1]):
            into[r, d] = as_float(bits_at(address, np.uintp(d)), FLOAT16)


@njit
def load_keys(source: Any, table: Any, asked: Any, place: Any, head: Any, first: Any, count: Any, into: Any) -> None:
    """Keys first .. first + count of one sequence into the first rows of `into`, zeros behind them.

    source: [entries, heads, tokens, width]; a page is an entry where the cache is paged
    place: (entry, first token, sequence) of the sequence
    """
    entry, token, sequence = place
    halves, page = asked[HALVES], asked[PAGE]
    for c in range(count):
        j = first + c
        if asked[PAGED]:
            copy_row(source, np.int64(table[sequence, j // page]), head, j % page, into, c, halves)
        else:
            copy_row(source, entry, head, token + j, into, c, halves)
    for c in range(count, into.shape[0]):
        for d in range(into.shape[1]):
            into[c, d] = ZERO


@njit(fastmath=FAST)
def all_finite(rows: Any) -> Any:
    """Whether no number of these float32 rows is inf or NaN: 0 times each, summed, is 0."""
    for r in range(rows.shape[0]):
        total = ZERO
        for d in range(rows.shape[1]):
            total += rows[r, d] * ZERO
        if total != ZERO:
            return False
    return True
