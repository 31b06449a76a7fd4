"""Which weights dropout keeps: Philox4x32-10 in numpy's 64-bit words, written apart from every backend.

    key     = (seed mod 2^32, seed div 2^32 mod 2^32)
    counter = (key index, query index, query head, sequence)          positions inside the sequence
    kept    = first output word >= p * 2^32                           a kept weight is divided by 1 - p

One round multiplies words 0 and 2 by their constants and crosses the halves of the products over.
"""

from __future__ import annotations

import math

import numpy as np
import torch

Words = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)


def kept_weights(batch: int, heads: int, rows: int, columns: int, probability: float, seed: int) -> torch.Tensor:
    """Bool [batch, heads, rows, columns] on the host: False where the weight is dropped."""
    sequence, head, row, column = np.ogrid[:batch, :heads, :rows, :columns]
    counter = [word.astype(np.uint64) for word in (column, row, head, sequence)]
    first = first_word(counter, seed)
    kept = np.broadcast_to(first >= math.ceil(probability * 2**32), (batch, heads, rows, columns))
    return torch.from_numpy(kept.copy())


def first_word(counter: list[Words], seed: int) -> Words:
    """The first of the four output words for every counter (four words that broadcast against each other)."""
    key = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    words = list(counter)
    for _ in range(10):
        even, odd = words[0] * _MULTIPLIERS[0], words[2] * _MULTIPLIERS[1]
        words = [
            (odd >> _HALF) ^ words[1] ^ np.uint64(key[0]),
            odd & _LOW,
            (even >> _HALF) ^ words[3] ^ np.uint64(key[1]),
            even & _LOW,
        ]
        key = [(word + step) & 0xFFFFFFFF for word, step in zip(key, _WEYL, strict=True)]
    return words[0]
