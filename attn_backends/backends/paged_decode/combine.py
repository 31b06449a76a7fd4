"""The second kernel: one program puts a row together from the splits of its keys.

    m = max_i lse_i,   w_i = 2^(lse_i - m),   out = sum_i w_i out_i / (sum_i w_i + 2^(sink - m))

The sink enters here, once. A split that saw nothing has an LSE of -inf, hence weight 0.
"""

import triton
import triton.language as tl

from attn_backends.backends.paged_decode.result import store_result
from attn_backends.backends.paged_decode.scores import LOG2E, MINUS_INF


@triton.jit(do_not_specialize=("kv_heads", "group", "longest_q"))
def combine_splits(
    partial_out, partial_lse, facts, out, lse, sinks, starts_q,
    out_strides, lse_strides,
    kv_heads, group, longest_q, head_dim_v,
    BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_S: tl.constexpr, PACKED_Q: tl.constexpr,
    SINKS: tl.constexpr, STORE_LSE: tl.constexpr, EARLY: tl.constexpr,
):
    """Grid: (units times KV heads, rows of a tile); those without several splits end at once."""
    program = tl.program_id(0)
    kv_head = program % kv_heads
    row = tl.program_id(1)
    if EARLY:
        tl.extra.cuda.gdc_wait()
    fact = facts + program // kv_heads * 4
    splits = tl.load(fact)
    if splits <= 1:
        return
    item = tl.load(fact + 1)
    sequence = tl.load(fact + 2)
    place = tl.load(fact + 3) * BLOCK_M + row
    first_q = 0
    seq_q = longest_q
    if PACKED_Q:
        first_q = tl.load(starts_q + sequence)
        seq_q = tl.load(starts_q + sequence + 1) - first_q
    tiles = tl.cdiv(seq_q * group, BLOCK_M)
    if place >= seq_q * group:
        return
    head = kv_head * group + place % group

    lanes = tl.arange(0, BLOCK_S)
    columns = tl.arange(0, BLOCK_DV)
    top = tl.full([], MINUS_INF, dtype=tl.float32)
    total = tl.zeros([], dtype=tl.float32)
    if SINKS:
        top = tl.load(sinks + head) * LOG2E
        total = tl.where(top == MINUS_INF, 0.0, 1.0)
    acc = tl.zeros([BLOCK_DV], dtype=tl.float32)
    for first in range(0, splits, BLOCK_S):
        inside = first + lanes < splits
        programs = (item + (first + lanes) * tiles) * kv_heads + kv_head
        entries = programs.to(tl.int64) * BLOCK_M + row
        parts = tl.load(partial_lse + entries, mask=inside, other=MINUS_INF)
        values = tl.load(partial_out + entries[:, None] * BLOCK_DV + columns[None, :], mask=inside[:, None], other=0.0)
        top_new = tl.maximum(top, tl.max(parts, 0))
        shift = tl.where(top_new == MINUS_INF, 0.0, top_new)
        fade = tl.exp2(top - shift)
        weights = tl.exp2(parts - shift)
        total = total * fade + tl.sum(weights, 0)
        acc = acc * fade + tl.sum(weights[:, None] * values, 0)
        top = top_new
    zero = tl.zeros([1], dtype=tl.int32)
    store_result(
        out, lse, out_strides, lse_strides, sequence, first_q, zero + place // group, zero + head, zero == 0, head_dim_v,
        acc[None, :], zero.to(tl.float32) + top, zero.to(tl.float32) + total, BLOCK_DV, PACKED_Q, STORE_LSE,
    )
