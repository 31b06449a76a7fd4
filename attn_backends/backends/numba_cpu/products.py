"""The two products of a tile: BLAS for many rows; loops for few, where BLAS spends its time on arranging K and V."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from attn_backends.backends.numba_cpu.flags import FAST
from attn_backends.backends.numba_cpu.numbers import ZERO

FEW = 8  # rows


@njit(fastmath=FAST)
def scores_of(queries: Any, keys: Any, held: Any, s: Any) -> None:
    """s = queries keys^T, at least its first `held` columns: [R, D], [keys, D] -> [R, keys]."""
    if queries.shape[0] > FEW:
        np.dot(queries, keys.T, s)
        return
    for c in range(held):
        for r in range(queries.shape[0]):
            total = ZERO
            for d in range(queries.shape[1]):
                total += queries[r, d] * keys[c, d]
            s[r, c] = total


@njit(fastmath=FAST)
def sums_of(weights: Any, values: Any, held: Any, product: Any) -> None:
    """product = weights values over `held` keys; weights behind them are 0: [R, keys], [keys, Dv] -> [R, Dv]."""
    if weights.shape[0] > FEW:
        np.dot(weights, values, product)
        return
    for r in range(weights.shape[0]):
        for d in range(values.shape[1]):
            product[r, d] = ZERO
    for c in range(held):
        for r in range(weights.shape[0]):
            weight = weights[r, c]
            for d in range(values.shape[1]):
                product[r, d] += weight * values[c, d]
