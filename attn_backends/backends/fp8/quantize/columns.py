"""Blocks of V: quantised, and written transposed, keys in the order of `operands.key_order`.

    scale = max|x| / 448;   vt8[d, place] = e4m3(x[key at place, d] / scale)              x [128, Dv]

A block is read as four tiles, of the keys at places 0, 4, 8 .., at 1, 5, 9 .. and so on: the codes of one place in each
make a word of 32 bits in a thread's registers, and words, not bytes, are exchanged between threads. A row of V is a
stretch of memory of its own, so that no order of reading costs anything.
"""

import triton
import triton.language as tl

from attn_backends.backends.fp8.quantize.codes import (
    LARGEST_VALUE_SCALE,
    LEAST_VALUE_SCALE,
    largest_of,
    reciprocal_of,
    scale_of,
    word_of,
)
from attn_backends.backends.fp8.quantize.sequences import KEPT, load_block

WORDS: tl.constexpr = tl.constexpr(32)  # of a block, in each column


@triton.jit
def quantize_columns(
    source, target, scales, strides, row_stride, first_block, last_block, begin, end,
    D: tl.constexpr, CHECKED: tl.constexpr, WIDE: tl.constexpr, NATIVE: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Blocks first_block .. last_block of one head of one sequence; 0 for tokens outside begin .. end.

    target: pointer to the words of the first column; row_stride: from a column to the next, in words; AHEAD: load a block while
    the one before it is worked on
    """
    if AHEAD:
        x0, x1, x2, x3 = load_quarters(source, strides, first_block, begin, end, D, WIDE, CHECKED)
    # Copies into shared memory would be read from there twice, column by column: the next block waits in registers.
    for block in tl.range(first_block, last_block, num_stages=1):
        if AHEAD:
            after = tl.minimum(block + 1, last_block - 1)
            n0, n1, n2, n3 = load_quarters(source, strides, after, begin, end, D, WIDE, CHECKED)
        else:
            x0, x1, x2, x3 = load_quarters(source, strides, block, begin, end, D, WIDE, CHECKED)
        largest = largest_of(x0, x1, x2, x3, NATIVE)
        scale = scale_of(largest, LARGEST_VALUE_SCALE, LEAST_VALUE_SCALE)
        reciprocal = reciprocal_of(scale, largest)
        words = word_of(
            x0.to(tl.float32) * reciprocal, x1.to(tl.float32) * reciprocal,
            x2.to(tl.float32) * reciprocal, x3.to(tl.float32) * reciprocal, NATIVE,
        )  # fmt: skip
        store_columns(target, row_stride, block, words, D)
        tl.store(scales + block, scale)
        if AHEAD:
            x0, x1, x2, x3 = n0, n1, n2, n3


@triton.jit
def load_quarters(
    source, strides, block, begin, end, D: tl.constexpr, WIDE: tl.constexpr, CHECKED: tl.constexpr
):
    """The keys of a block at places 0, 4, 8 .., at 1, 5, 9 .., at 2, 6 .. and at 3, 7 ..: four tiles [32, D]."""
    place = tl.arange(0, WORDS) * 4
    x0 = load_block(source, strides, block, key_at(place), 0, begin, end, D, WIDE, CHECKED)
    x1 = load_block(source, strides, block, key_at(place + 1), 0, begin, end, D, WIDE, CHECKED)
    x2 = load_block(source, strides, block, key_at(place + 2), 0, begin, end, D, WIDE, CHECKED)
    x3 = load_block(source, strides, block, key_at(place + 3), 0, begin, end, D, WIDE, CHECKED)
    return x0, x1, x2, x3


@triton.jit
def key_at(place):
    """Which key of a block stands at a place."""
    return (place & ~15) + ((place >> 1) & 1) * 8 + ((place >> 2) & 3) * 2 + (place & 1)


@triton.jit
def store_columns(target, row_stride, block, words, D: tl.constexpr):
    """Words [32, D] as [D, 32]."""
    columns = tl.arange(0, D).to(tl.int64)
    corner = target + block * WORDS
    tl.store(corner + (columns[:, None] * row_stride + tl.arange(0, WORDS)[None, :]), tl.trans(words), eviction_policy=KEPT)
