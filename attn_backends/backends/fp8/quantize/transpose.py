"""V that came as codes, transposed into the operand of the second product; its scales stay as they are."""

import triton
import triton.language as tl

from attn_backends.backends.fp8.quantize.codes import joined
from attn_backends.backends.fp8.quantize.columns import load_quarters, store_columns
from attn_backends.backends.fp8.quantize.sequences import BLOCK, first_row, sequence_of


@triton.jit(do_not_specialize=("tokens", "tokens_q", "heads", "left"))
def transpose_codes(
    codes, vt8, starts, starts_q, strides, column_stride, tokens, tokens_q, heads, left,
    D: tl.constexpr, LEFT: tl.constexpr, PACKED: tl.constexpr, WIDE: tl.constexpr,
):
    """Grid: one program per block of 128 tokens of a head of a sequence. codes: bytes [batch, head, token, width]; vt8: words of 32 bits.

    Tokens that no query sees are 0, as in `quantize_operands`.
    """
    blocks = tl.maximum(tl.cdiv(tokens, BLOCK), 1)
    program = tl.program_id(0)
    block = program % blocks
    head = program // blocks % heads
    entry = program // blocks // heads
    first, length = sequence_of(entry, starts, tokens, PACKED)
    if block * BLOCK >= length:
        return
    begin = 0
    if LEFT:
        _first_q, length_q = sequence_of(entry, starts_q, tokens_q, PACKED)
        begin = tl.maximum(length - length_q - left, 0)
    base = first_row(codes, strides, entry, head, first, PACKED)
    target = vt8 + (entry * heads + head).to(tl.int64) * D * column_stride
    b0, b1, b2, b3 = load_quarters(base, strides, block, begin, length, D, WIDE, True)
    store_columns(target, column_stride, block, joined(b0, b1, b2, b3), D)
