"""The pass: every program quantises a few blocks of one head of Q, of K or of V; one launch for all three."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from attn_backends.backends.fp8.quantize.columns import quantize_columns
from attn_backends.backends.fp8.quantize.rows import quantize_rows
from attn_backends.backends.fp8.quantize.sequences import BLOCK, first_row, sequence_of


@triton.jit
def place_of(program, heads, chunks, HEADS_FIRST: tl.constexpr):
    """(batch, head, chunk): neighbours in memory are neighbours in time. HEADS_FIRST: heads lie inside tokens."""
    inner = program % (heads * chunks)
    if HEADS_FIRST:
        head = inner % heads
        chunk = inner // heads
    else:
        head = inner // chunks
        chunk = inner % chunks
    return program // (heads * chunks), head, chunk


@triton.jit(do_not_specialize=("tokens_q", "tokens_k", "heads_q", "heads_k", "batch", "left", "several", "weight"))
def quantize_operands(
    q, k, v, q8, k8, vt8, q_scales, k_scales, v_scales, starts_q, starts_k,
    q_strides, k_strides, v_strides, q8_strides, k8_strides, column_stride,
    tokens_q, tokens_k, heads_q, heads_k, batch, left, several, weight,
    D: tl.constexpr, DV: tl.constexpr, ROTATE: tl.constexpr, PART: tl.constexpr,
    LEFT: tl.constexpr, PACKED_Q: tl.constexpr, PACKED_K: tl.constexpr, CHECKED_Q: tl.constexpr, CHECKED_K: tl.constexpr,
    HEADS_FIRST: tl.constexpr, WIDE: tl.constexpr, NATIVE: tl.constexpr, STAGES: tl.constexpr, AHEAD: tl.constexpr,
    GIVES_WAY: tl.constexpr,
):
    """Grid: one program per `several` blocks of a head of a sequence: those of Q, then of K, then of V.

    tokens_q, tokens_k: of the longest sequence. vt8, column_stride: in words of 32 bits. LEFT: keys further than `left` before the first
    query are seen by nobody and count as 0, so that whatever they hold moves no scale. weight: of Q, see rows.py. GIVES_WAY: the next kernel, if it asks
    for that and waits (`gdc_wait`), may take the multiprocessors that run out of programs; sm_90 and later.
    """
    if GIVES_WAY:
        gdc_launch_dependents()
    blocks_q = tl.maximum(tl.cdiv(tokens_q, BLOCK), 1)
    blocks_k = tl.maximum(tl.cdiv(tokens_k, BLOCK), 1)
    chunks_q = tl.cdiv(blocks_q, several)
    chunks_k = tl.cdiv(blocks_k, several)
    programs_q = batch * heads_q * chunks_q
    programs_k = batch * heads_k * chunks_k
    program = tl.program_id(0)
    if program < programs_q:
        entry, head, chunk = place_of(program, heads_q, chunks_q, HEADS_FIRST)
        first, length = sequence_of(entry, starts_q, tokens_q, PACKED_Q)
        first_block = chunk * several
        last_block = tl.minimum(first_block + several, tl.cdiv(length, BLOCK))
        quantize_rows(
            first_row(q, q_strides, entry, head, first, PACKED_Q),
            first_row(q8, q8_strides, entry, head, first, PACKED_Q),
            q_scales + (entry * heads_q + head) * blocks_q,
            q_strides, q8_strides, first_block, last_block, 0, length, weight,
            D, ROTATE, PART, CHECKED_Q, WIDE, NATIVE, STAGES,
        )
    else:
        program -= programs_q
        is_v = program >= programs_k
        program = tl.where(is_v, program - programs_k, program)
        entry, head, chunk = place_of(program, heads_k, chunks_k, HEADS_FIRST)
        first, length = sequence_of(entry, starts_k, tokens_k, PACKED_K)
        first_block = chunk * several
        last_block = tl.minimum(first_block + several, tl.cdiv(length, BLOCK))
        begin = 0
        if LEFT:
            _first_q, length_q = sequence_of(entry, starts_q, tokens_q, PACKED_Q)
            begin = tl.maximum(length - length_q - left, 0)
        scale = (entry * heads_k + head) * blocks_k
        if is_v:
            quantize_columns(
                first_row(v, v_strides, entry, head, first, PACKED_K),
                vt8 + (entry * heads_k + head).to(tl.int64) * DV * column_stride,
                v_scales + scale,
                v_strides, column_stride, first_block, last_block, begin, length,
                DV, CHECKED_K, WIDE, NATIVE, AHEAD,
            )
        else:
            quantize_rows(
                first_row(k, k_strides, entry, head, first, PACKED_K),
                first_row(k8, k8_strides, entry, head, first, PACKED_K),
                k_scales + scale,
                k_strides, k8_strides, first_block, last_block, begin, length, 1.0,
                D, ROTATE, PART, CHECKED_K, WIDE, NATIVE, STAGES,
            )
