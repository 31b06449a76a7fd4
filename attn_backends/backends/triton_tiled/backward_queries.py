"""dQ: one program owns BLOCK_M queries of one head and walks over the keys that they may see.

    for every tile of BLOCK_N keys:
        p  = exp2(scores(q k^T) - lse);   dp = dO v^T;   ds = p (dp - delta);   dQ += ds k
    dQ *= scale

Shapes: q [BLOCK_M, D], dO [BLOCK_M, Dv], k [BLOCK_N, D], v [BLOCK_N, Dv]; dQ in float32 registers. The keys split into
the same three stretches as in the forward kernel.
"""

import triton
import triton.language as tl

from attn_backends.backends.triton_tiled.philox import kept
from attn_backends.backends.triton_tiled.present import SLOPES
from attn_backends.backends.triton_tiled.scores import LOG2E, MINUS_INF, score_tile, softcap_slope, weight_of
from attn_backends.backends.triton_tiled.specialization import LENGTHS_AND_COUNTS, READ_ONE_BY_ONE, family
from attn_backends.backends.triton_tiled.tile import (
    any_steps,
    first_row,
    keys_of,
    load_rows,
    pair_of,
    queries_of,
    row_steps,
    row_values,
    tile_pointers,
    tile_steps,
)
from attn_backends.backends.triton_tiled.walk import key_stretches


@triton.jit(do_not_specialize=LENGTHS_AND_COUNTS, do_not_specialize_on_alignment=READ_ONE_BY_ONE)
def query_gradients(
    q, k, v, d_out, norms, rests, delta, d_q, slopes, mask, mask_strides, blocks, block_strides, inner, inner_strides, block_sizes, tile_lists, tile_counts,
    starts_q, starts_k, lengths_k,
    q_strides, k_strides, v_strides, d_out_strides, norm_strides, delta_strides, d_q_strides, slope_strides, tile_strides,
    num_q_heads, gqa_ratio, longest_q, longest_k, head_dim, head_dim_v,
    scale, softcap, inner_scale, left, right, bottom_right, present, dropout_seed, dropout_threshold, dropout_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    PACKED_Q: tl.constexpr, PACKED_K: tl.constexpr, LENGTHS: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, PORTABLE: tl.constexpr, ALIGNED: tl.constexpr,
    SOFTCAP: tl.constexpr, BIAS: tl.constexpr, BOOL_MASK: tl.constexpr, BLOCK_MASK: tl.constexpr,
    INNER_MASK: tl.constexpr, ALIBI: tl.constexpr, DROPOUT: tl.constexpr,
    TMA: tl.constexpr, WIDE: tl.constexpr, PADDED_D: tl.constexpr, PADDED_DV: tl.constexpr,
    GUARD: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr, FAST_TANH: tl.constexpr,
):
    """Grid: one program per (query tile, head, sequence), one-dimensional; the tile with the longest walk first."""
    if PORTABLE:
        q_strides = tile_steps(q_strides, ALIGNED)
        k_strides = tile_steps(k_strides, ALIGNED)
        v_strides = tile_steps(v_strides, ALIGNED)
        d_out_strides = tile_steps(d_out_strides, ALIGNED)
        d_q_strides = tile_steps(d_q_strides, ALIGNED)
        mask_strides = any_steps(mask_strides)
        block_strides = any_steps(block_strides)
        inner_strides = any_steps(inner_strides)
        block_sizes = pair_of(block_sizes)
        slope_strides = pair_of(slope_strides)
        tile_strides = any_steps(tile_strides)
        norm_strides = row_steps(norm_strides)
        delta_strides = row_steps(delta_strides)
        if ALIGNED:
            head_dim = head_dim // 16 * 16
            head_dim_v = head_dim_v // 16 * 16
    tiles = tl.cdiv(longest_q, BLOCK_M)
    program = tl.program_id(0)
    tile = program % tiles
    head = program // tiles % num_q_heads
    batch = program // tiles // num_q_heads
    if RIGHT:
        tile = tiles - 1 - tile
    kv_head = head // gqa_ratio
    first_q, seq_q = queries_of(batch, starts_q, longest_q, present, PACKED_Q, PORTABLE)
    first_k, seq_k = keys_of(batch, starts_k, lengths_k, longest_k, present, PACKED_K, LENGTHS, PORTABLE)
    start_q = tile * BLOCK_M
    if start_q >= seq_q:
        return
    offset = (seq_k - seq_q) * bottom_right
    queries = start_q + tl.arange(0, BLOCK_M)
    q_base = q if TMA else first_row(q, q_strides, batch, head, first_q, PACKED_Q)
    d_out_base = d_out if TMA else first_row(d_out, d_out_strides, batch, head, first_q, PACKED_Q)
    k_base = k if TMA else first_row(k, k_strides, batch, kv_head, first_k, PACKED_K)
    v_base = v if TMA else first_row(v, v_strides, batch, kv_head, first_k, PACKED_K)
    q_tile = load_rows(
        q, q_base, q_strides, batch, head, first_q, start_q, seq_q, head_dim,
        BLOCK_M, BLOCK_D, TMA, PACKED_Q, WIDE, True, PADDED_D,
    )
    d_out_tile = load_rows(
        d_out, d_out_base, d_out_strides, batch, head, first_q, start_q, seq_q, head_dim_v,
        BLOCK_M, BLOCK_DV, TMA, PACKED_Q, WIDE, True, PADDED_DV,
    ).to(q_tile.dtype)
    norm = row_values(norms, norm_strides, batch, head, first_q, queries, seq_q, PACKED_Q)
    if BIAS:
        norm = tl.where(norm == MINUS_INF, 0.0, norm)
        rest = row_values(rests, norm_strides, batch, head, first_q, queries, seq_q, PACKED_Q)
    row = row_values(delta, delta_strides, batch, head, first_q, queries, seq_q, PACKED_Q)
    slope = 0.0
    if PORTABLE:
        slope = tl.load(slopes + batch * slope_strides[0] + head * slope_strides[1], mask=(present & SLOPES) != 0, other=0.0)
    elif ALIBI:
        slope = tl.load(slopes + batch * slope_strides[0] + head * slope_strides[1])

    begin, whole, cut, end = key_stretches(start_q, seq_q, seq_k, offset, left, right, BLOCK_M, BLOCK_N, LEFT, RIGHT)
    grad = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    MASKED: tl.constexpr = BIAS or BOOL_MASK or BLOCK_MASK
    ALL_CUT: tl.constexpr = MASKED or PORTABLE
    ENDS_CUT: tl.constexpr = LEFT or RIGHT or not EVEN_K
    STEP: tl.constexpr = 1 if BLOCK_MASK else BLOCK_N
    if BLOCK_MASK:
        entry = batch * tile_strides[0] + head * tile_strides[1] + tile * tile_strides[2]
        listed = tl.load(tile_counts + entry)
        list_row = tile_lists + entry.to(tl.int64) * tile_strides[3]
    for stretch in tl.static_range(3):
        if stretch == 1 or (not ALL_CUT and ((stretch == 0 and LEFT) or (stretch == 2 and ENDS_CUT))):
            if BLOCK_MASK:
                low = 0
                high = listed
            elif ALL_CUT:
                low = begin
                high = end
            elif stretch == 0:
                low = begin
                high = whole
            elif stretch == 1:
                low = whole
                high = cut
            else:
                low = cut
                high = end
            for step in tl.range(low, high, STEP, disable_licm=MASKED or DROPOUT or not TMA):
                if BLOCK_MASK:
                    start = tl.load(list_row + step) * BLOCK_N
                else:
                    start = step
                keys = start + tl.arange(0, BLOCK_N)
                k_tile = load_rows(
                    k, k_base, k_strides, batch, kv_head, first_k, start, end, head_dim,
                    BLOCK_N, BLOCK_D, TMA, PACKED_K, WIDE, (stretch != 1 or ALL_CUT), PADDED_D,
                )
                v_tile = load_rows(
                    v, v_base, v_strides, batch, kv_head, first_k, start, end, head_dim_v,
                    BLOCK_N, BLOCK_DV, TMA, PACKED_K, WIDE, (stretch != 1 or ALL_CUT), PADDED_DV,
                )
                product = tl.dot(q_tile, k_tile.T, input_precision=PRECISION)
                if SOFTCAP or BIAS or ALIBI or (stretch != 1 or ALL_CUT):
                    scores = score_tile(
                        product, queries[:, None], keys[None, :], mask, mask_strides, blocks, block_strides, inner, inner_strides, block_sizes, batch, head, slope, seq_q, seq_k, offset,
                        left, right, scale, softcap, inner_scale, LEFT, RIGHT, SOFTCAP, BIAS, BOOL_MASK, BLOCK_MASK, INNER_MASK,
                        ALIBI, (stretch != 1 or ALL_CUT), FAST_TANH, present, PORTABLE,
                    )
                    if BIAS:
                        p = weight_of(scores - norm[:, None], rest[:, None], BIAS)
                    else:
                        p = weight_of(scores, norm[:, None], BIAS)
                else:
                    p = tl.exp2(product * (scale * LOG2E) - norm[:, None])
                if SOFTCAP:
                    p = p * softcap_slope(product, inner_scale, FAST_TANH)
                d_p = tl.dot(d_out_tile, v_tile.T, input_precision=PRECISION)
                if DROPOUT:
                    keep = kept(dropout_seed, dropout_threshold, queries[:, None], keys[None, :], head, batch, BLOCK_M, BLOCK_N)
                    d_p = tl.where(keep, d_p * dropout_scale, 0.0)
                d_s = p * (d_p - row[:, None])
                if stretch != 1 or ALL_CUT:
                    d_s = tl.where(scores == MINUS_INF, 0.0, d_s)
                    if GUARD:
                        if MASKED:
                            seen = tl.max(scores, 0) > MINUS_INF
                        else:
                            seen = keys < end
                        k_tile = tl.where(seen[:, None], k_tile, 0.0)
                grad = tl.dot(d_s.to(k_tile.dtype), k_tile, grad, input_precision=PRECISION)

    inside = (queries < seq_q)[:, None]
    if PADDED_D:
        inside = inside & (tl.arange(0, BLOCK_D) < head_dim)[None, :]
    d_q_base = first_row(d_q, d_q_strides, batch, head, first_q, PACKED_Q)
    tl.store(
        tile_pointers(d_q_base, d_q_strides, start_q, BLOCK_M, BLOCK_D, WIDE),
        (grad * scale).to(d_q.dtype.element_ty), mask=inside,
    )


QUERIES = family(query_gradients)
