"""Where a tile lies in memory: sequences by index, tiles of rows by descriptor or by pointers.

A tensor arrives as `source` and its strides (batch, head, token, width), in elements. With TMA the source is a tensor
descriptor over [batch, head, token, width] with blocks of [1, 1, rows, width]; without, a pointer, and any strides.
Packed tensors have one batch entry, and a sequence begins at its own first token.
"""

import triton
import triton.language as tl

from attn_backends.backends.triton_tiled.present import LENGTHS_K, STARTS_K, STARTS_Q


@triton.jit
def decoded(number):
    """The number behind a coded one (`specialization.py`)."""
    return ~number >> 1


@triton.jit
def tile_steps(strides, ALIGNED: tl.constexpr):
    """Strides of rows from coded ones; ALIGNED: all are multiples of 16, and the width's is 1."""
    batch, head, token, width = any_steps(strides)
    if ALIGNED:
        batch = batch // 16 * 16
        head = head // 16 * 16
        token = token // 16 * 16
        width = 1
    return batch, head, token, width


@triton.jit
def any_steps(strides):
    """Four strides from coded ones."""
    return decoded(strides[0]), decoded(strides[1]), decoded(strides[2]), decoded(strides[3])


@triton.jit
def row_steps(strides):
    """Three strides from coded ones."""
    return decoded(strides[0]), decoded(strides[1]), decoded(strides[2])


@triton.jit
def pair_of(numbers):
    """Two numbers from coded ones."""
    return decoded(numbers[0]), decoded(numbers[1])


@triton.jit
def queries_of(batch, starts, longest, present, PACKED: tl.constexpr, PORTABLE: tl.constexpr):
    """(first token in memory, length) of a sequence of queries: packed by `starts`, or dense."""
    first = 0
    length = longest
    if PORTABLE:
        packed = (present & STARTS_Q) != 0
        first = tl.load(starts + batch, mask=packed, other=0)
        length = tl.load(starts + batch + 1, mask=packed, other=longest) - first
    elif PACKED:
        first = tl.load(starts + batch)
        length = tl.load(starts + batch + 1) - first
    return first, length


@triton.jit
def keys_of(
    batch, starts, lengths, longest, present, PACKED: tl.constexpr, LENGTHS: tl.constexpr, PORTABLE: tl.constexpr
):
    """(first token in memory, length) of a sequence of keys: packed by `starts`, dense with `lengths`, or dense."""
    first = 0
    length = longest
    if PORTABLE:
        packed = (present & STARTS_K) != 0
        first = tl.load(starts + batch, mask=packed, other=0)
        length = tl.load(starts + batch + 1, mask=packed, other=longest) - first
        length = tl.load(lengths + batch, mask=(present & LENGTHS_K) != 0, other=length)
    elif PACKED:
        first = tl.load(starts + batch)
        length = tl.load(starts + batch + 1) - first
    elif LENGTHS:
        length = tl.load(lengths + batch)
    return first, length


@triton.jit
def first_row(source, strides, batch, head, first, PACKED: tl.constexpr):
    """Pointer to the first token of a head of a sequence."""
    row = source + head.to(tl.int64) * strides[1] + tl.cast(first, tl.int64) * strides[2]
    if not PACKED:
        row += batch.to(tl.int64) * strides[0]
    return row


@triton.jit
def load_rows(
    source, base, strides, batch, head, first, start, length, width,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, TMA: tl.constexpr, PACKED: tl.constexpr, WIDE: tl.constexpr,
    CHECKED: tl.constexpr, PADDED: tl.constexpr,
):
    """Rows start .. start + ROWS of a head as [ROWS, WIDTH].

    CHECKED: rows from `length` on are read as 0 (by descriptor: those behind the tensor, others as they lie there).
    PADDED: columns from `width` on are 0.
    """
    if TMA:
        entry = 0 if PACKED else batch
        tile = source.load([entry, head, first + start, 0]).reshape([ROWS, WIDTH])
    else:
        pointers = tile_pointers(base, strides, start, ROWS, WIDTH, WIDE)
        if CHECKED and PADDED:
            inside = (start + tl.arange(0, ROWS) < length)[:, None] & (tl.arange(0, WIDTH) < width)[None, :]
            tile = tl.load(pointers, mask=inside, other=0.0)
        elif CHECKED:
            tile = tl.load(pointers, mask=(start + tl.arange(0, ROWS) < length)[:, None], other=0.0)
        elif PADDED:
            tile = tl.load(pointers, mask=(tl.arange(0, WIDTH) < width)[None, :], other=0.0)
        else:
            tile = tl.load(pointers)
    return tile


@triton.jit
def tile_pointers(base, strides, start, ROWS: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    """Pointers [ROWS, WIDTH] to rows from `start` on; WIDE: offsets inside the tile leave 32 bits."""
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    if WIDE:
        rows = rows.to(tl.int64)
        columns = columns.to(tl.int64)
    corner = base + tl.cast(start, tl.int64) * strides[2]
    return corner + (rows[:, None] * strides[2] + columns[None, :] * strides[3])


@triton.jit
def row_values(source, strides, batch, head, first, rows, length, PACKED: tl.constexpr):
    """One number per row of a head, [batch, head, token] or [1, head, token]; 0 behind the sequence."""
    row = source + head.to(tl.int64) * strides[1]
    if not PACKED:
        row += batch.to(tl.int64) * strides[0]
    return tl.load(row + (first + rows).to(tl.int64) * strides[2], mask=rows < length, other=0.0)


@triton.jit
def store_rows(target, strides, batch, head, first, rows, length, values, PACKED: tl.constexpr):
    """Write one number per row of a head, as `row_values` reads them."""
    row = target + head.to(tl.int64) * strides[1]
    if not PACKED:
        row += batch.to(tl.int64) * strides[0]
    tl.store(row + (first + rows).to(tl.int64) * strides[2], values, mask=rows < length)
