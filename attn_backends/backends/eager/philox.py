"""Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3; SC 2011), and dropout by it.

    key     = the two 32-bit words of the seed, low word first
    counter = (key index, query index, query head, batch)      positions inside the sequence
    keep    = first output word >= p * 2^32;  a kept weight is scaled by 1 / (1 - p)

The entry alone decides, so every backend drops the same ones, in whatever order it visits them. 32-bit words are held
in int64 tensors; products are split so that none leaves 63 bits.
"""

from __future__ import annotations

import math

import torch

from attn_backends.backends.eager.sequences import Sequence
from attn_backends.call import Call

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # golden ratio and sqrt(3) - 1
_WORD = 0xFFFFFFFF

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Four words for every counter; the words are int64 tensors in [0, 2^32) that broadcast against each other."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3


def _multiply(word: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(high, low) words of a 32 x 32 bit product, by the 16-bit halves of the word."""
    by_low_half = (word & 0xFFFF) * factor
    rest = (word >> 16) * factor + (by_low_half >> 16)
    return rest >> 16, ((rest & 0xFFFF) << 16) | (by_low_half & 0xFFFF)


def seed_words(seed: int) -> tuple[int, int]:
    """A 64-bit seed (a negative one as two's complement) as its low and high word."""
    return seed & _WORD, (seed >> 32) & _WORD


def kept(call: Call, sequence: Sequence, heads: int) -> torch.Tensor:
    """Which weights of a sequence dropout keeps: bool [heads, seq_q, seq_k]."""

    def count(size: int, *shape: int) -> torch.Tensor:
        return torch.arange(size, dtype=torch.int64, device=call.q.device).reshape(shape)

    counter = (
        count(sequence.seq_k, 1, 1, -1),
        count(sequence.seq_q, 1, -1, 1),
        count(heads, -1, 1, 1),
        torch.full((1, 1, 1), sequence.index, dtype=torch.int64, device=call.q.device),
    )
    first, *_others = philox4x32(counter, seed_words(call.dropout_seed))
    return first >= math.ceil(call.dropout_p * 2**32)
