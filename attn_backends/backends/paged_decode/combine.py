"""The second kernel: rows put together from the splits of their keys (`merge.py`), where no program of the first one does it."""

import triton
import triton.language as tl

from attn_backends.backends.paged_decode.merge import merge_splits


@triton.jit(do_not_specialize=("kv_heads", "group", "longest_q"))
def combine_splits(
    partial_out, partial_lse, facts, out, lse, sinks, starts_q,
    out_strides, lse_strides,
    kv_heads, group, longest_q, head_dim_v,
    BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr, ROWS: tl.constexpr, AT_A_TIME: tl.constexpr, PACKED_Q: tl.constexpr,
    SINKS: tl.constexpr, STORE_LSE: tl.constexpr, EARLY: tl.constexpr,
):
    """Grid: (query tiles times KV heads, ROWS rows of a tile each); those without several splits end at once."""
    program = tl.program_id(0)
    kv_head = program % kv_heads
    if EARLY:
        tl.extra.cuda.gdc_wait()
    fact = facts + program // kv_heads * 4
    splits = tl.load(fact)
    if splits <= 1:
        return
    item = tl.load(fact + 1)
    sequence = tl.load(fact + 2)
    first_row = tl.load(fact + 3) * BLOCK_M
    within = tl.program_id(1) * ROWS
    first_q = 0
    seq_q = longest_q
    if PACKED_Q:
        first_q = tl.load(starts_q + sequence)
        seq_q = tl.load(starts_q + sequence + 1) - first_q
    if first_row + within >= seq_q * group:
        return
    merge_splits(
        partial_out, partial_lse, out, lse, sinks, out_strides, lse_strides,
        item, tl.cdiv(seq_q * group, BLOCK_M), splits, kv_heads, kv_head, sequence, first_q, first_row, within, seq_q, group, head_dim_v,
        BLOCK_M, BLOCK_DV, ROWS, AT_A_TIME, PACKED_Q, SINKS, STORE_LSE,
    )
