"""Which weights dropout keeps, by Philox4x32-10 in wrapping 64-bit products; written apart from oracle and eager.

A product of two 32-bit words has 64 bits; int64 wraps around, so the high word is bits 32 to 63 whatever the sign says.
"""

from __future__ import annotations

import math

import torch

_LOW = 0xFFFFFFFF


def kept(probability: float, seed: int, sequence: int, heads: int, rows: int, columns: int) -> torch.Tensor:
    """Bool [heads, rows, columns] on the CPU: the entries of one sequence that stay."""
    j = torch.arange(columns).reshape(1, 1, -1)
    i = torch.arange(rows).reshape(1, -1, 1)
    h = torch.arange(heads).reshape(-1, 1, 1)
    return first_word((j, i, h, torch.tensor(sequence)), seed) >= math.ceil(probability * 2.0**32)


def first_word(counter: tuple[torch.Tensor, ...], seed: int) -> torch.Tensor:
    """The first output word of each counter (four words that broadcast)."""
    a, b, c, d = counter
    low, high = seed & _LOW, seed >> 32 & _LOW
    for step in range(10):
        k0, k1 = (low + step * 0x9E3779B9) & _LOW, (high + step * 0xBB67AE85) & _LOW
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = _high(second) ^ b ^ k0, second & _LOW, _high(first) ^ d ^ k1, first & _LOW
    return a


def _high(product: torch.Tensor) -> torch.Tensor:
    return product >> 32 & _LOW
