"""Blocks of Q or K: rotated or not, quantised, written as they lie.

    y = x R;   power = 2^ceil(log2(max|y| weight / 448));   code = e4m3(y weight / power);   scale = power / weight

Shapes: x [128, D], R [D, D]. weight: 1 for K; for Q the digits (1 to 2) of the softmax scale times log2(e), so that a score in
base 2 is its codes' product times powers of two. Its power of two stays with the call: however large or small it is, it takes
nothing of the range that Q's scales have.
"""

import triton
import triton.language as tl

from attn_backends.backends.fp8.quantize.codes import codes_of, power_of
from attn_backends.backends.fp8.quantize.rotation import ENTRY, in_register_order, rotation
from attn_backends.backends.fp8.quantize.sequences import BLOCK, KEPT, block_pointers, load_block


@triton.jit
def quantize_rows(
    source, target, scales, strides, target_strides, first_block, last_block, begin, end, weight,
    D: tl.constexpr, ROTATE: tl.constexpr, PART: tl.constexpr, CHECKED: tl.constexpr, WIDE: tl.constexpr,
    NATIVE: tl.constexpr, STAGES: tl.constexpr,
):
    """Blocks first_block .. last_block of one head of one sequence.

    source, target, scales: pointers to its first token and its first scale; begin, end: tokens that count; weight: above
    PART: columns that are multiplied at once; 1, 2 or 4 parts make D
    """
    UNIT: tl.constexpr = 1.0 / (ENTRY * D**0.5) if ROTATE else 1.0  # what one of the numbers behind the rotation counts
    PARTS: tl.constexpr = D // PART if ROTATE else 1
    WIDTH: tl.constexpr = PART if ROTATE else D
    unit = UNIT * weight
    rows = tl.arange(0, BLOCK)
    matrix = rotation(PART, source.dtype.element_ty) if ROTATE else 0
    for block in tl.range(first_block, last_block, num_stages=STAGES):
        y0 = load_part(source, strides, block, rows, 0, begin, end, matrix, WIDTH, ROTATE, WIDE, CHECKED)
        sizes = tl.abs(y0)  # the largest of each part's numbers: one search through a block, whatever its parts
        if PARTS > 1:
            y1 = load_part(source, strides, block, rows, PART, begin, end, matrix, WIDTH, ROTATE, WIDE, CHECKED)
            y0, y1 = y0 + y1, y0 - y1
            sizes = tl.maximum(tl.abs(y0), tl.abs(y1))
        if PARTS > 2:
            y2 = load_part(source, strides, block, rows, 2 * PART, begin, end, matrix, WIDTH, ROTATE, WIDE, CHECKED)
            y3 = load_part(source, strides, block, rows, 3 * PART, begin, end, matrix, WIDTH, ROTATE, WIDE, CHECKED)
            y2, y3 = y2 + y3, y2 - y3
            y0, y2 = y0 + y2, y0 - y2
            y1, y3 = y1 + y3, y1 - y3
            sizes = tl.maximum(tl.maximum(tl.abs(y0), tl.abs(y1)), tl.maximum(tl.abs(y2), tl.abs(y3)))
        largest = tl.max(sizes)
        power = power_of(largest * unit)
        factor = tl.where(largest == float("inf"), 0.0, unit / power)  # so that an infinite number becomes NaN
        store_part(target, target_strides, block, rows, 0, end, codes_of(y0 * factor, NATIVE), WIDTH, ROTATE, CHECKED)
        if PARTS > 1:
            store_part(target, target_strides, block, rows, PART, end, codes_of(y1 * factor, NATIVE), WIDTH, ROTATE, CHECKED)
        if PARTS > 2:
            store_part(target, target_strides, block, rows, 2 * PART, end, codes_of(y2 * factor, NATIVE), WIDTH, ROTATE, CHECKED)
            store_part(target, target_strides, block, rows, 3 * PART, end, codes_of(y3 * factor, NATIVE), WIDTH, ROTATE, CHECKED)
        tl.store(scales + block, tl.where(largest == 0.0, 1.0, power / weight))


@triton.jit
def load_part(
    base, strides, block, rows, column, begin, end, matrix,
    WIDTH: tl.constexpr, ROTATE: tl.constexpr, WIDE: tl.constexpr, CHECKED: tl.constexpr,
):
    """float32 [128, WIDTH] of a block from `column` on, times the matrix where there is one."""
    tile = load_block(base, strides, block, rows, column, begin, end, WIDTH, WIDE, CHECKED)
    if ROTATE:
        tile = tl.dot(tile, matrix, input_precision="tf32x3")
    return tile.to(tl.float32)


@triton.jit
def store_part(
    base, strides, block, rows, column, end, codes, WIDTH: tl.constexpr, ROTATED: tl.constexpr, CHECKED: tl.constexpr
):
    """Codes [128, WIDTH] to where they belong; rotated columns in the order of registers."""
    if ROTATED:
        codes = in_register_order(codes, BLOCK, WIDTH)
    pointers = block_pointers(base, strides, block, rows, column, WIDTH, False)
    if CHECKED:
        tl.store(pointers, codes, mask=(rows + block * BLOCK < end)[:, None], eviction_policy=KEPT)
    else:
        tl.store(pointers, codes, eviction_policy=KEPT)
