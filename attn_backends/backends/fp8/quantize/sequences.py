"""Where a block of 128 tokens lies: its sequence, its head, its pointers."""

import triton
import triton.language as tl

from attn_backends.backends.fp8 import block as tokens_of_a_scale

BLOCK: tl.constexpr = tl.constexpr(tokens_of_a_scale.BLOCK)
KEPT: tl.constexpr = tl.constexpr("evict_last")  # codes: the kernel behind the pass reads them, from the L2 cache where they still are


@triton.jit
def sequence_of(batch, starts, tokens, PACKED: tl.constexpr):
    """(first token in memory, length) of a sequence: packed by `starts`, or dense."""
    first = 0
    length = tokens
    if PACKED:
        first = tl.load(starts + batch)
        length = tl.load(starts + batch + 1) - first
    return first, length


@triton.jit
def first_row(source, strides, batch, head, first, PACKED: tl.constexpr):
    """Pointer to the first token of a head of a sequence; strides (batch, head, token, width)."""
    row = source + head.to(tl.int64) * strides[1] + tl.cast(first, tl.int64) * strides[2]
    if not PACKED:
        row += batch.to(tl.int64) * strides[0]
    return row


@triton.jit
def block_pointers(base, strides, block, rows, column, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    """Pointers [rows, WIDTH] into a block from `column` on; WIDE: offsets inside it leave 32 bits."""
    columns = column + tl.arange(0, WIDTH)
    if WIDE:
        rows = rows.to(tl.int64)
        columns = columns.to(tl.int64)
    corner = base + tl.cast(block * BLOCK, tl.int64) * strides[2]
    return corner + (rows[:, None] * strides[2] + columns[None, :] * strides[3])


@triton.jit
def load_block(base, strides, block, rows, column, begin, end, WIDTH: tl.constexpr, WIDE: tl.constexpr, CHECKED: tl.constexpr):
    """Tokens [rows, WIDTH] of a block; CHECKED: 0 outside begin .. end.

    Nothing is read twice, so that the L2 cache is left to what is written (`KEPT`).
    """
    pointers = block_pointers(base, strides, block, rows, column, WIDTH, WIDE)
    if CHECKED:
        tokens = rows + block * BLOCK
        tile = tl.load(pointers, mask=((tokens >= begin) & (tokens < end))[:, None], other=0.0, eviction_policy="evict_first")
    else:
        tile = tl.load(pointers, eviction_policy="evict_first")
    return tile
