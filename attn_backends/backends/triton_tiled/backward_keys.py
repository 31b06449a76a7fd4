"""dK and dV: one program owns BLOCK_N keys of one KV head and walks over the queries that may see them.

    for every query head of the group, for every tile of BLOCK_M queries:
        p^T  = exp2(scores(k q^T) - lse)               recomputed; 0 where hidden
        dV  += p^T dO                                  p behind dropout
        dp^T = v dO^T                                  behind dropout
        ds^T = p^T (dp^T - delta)
        dK  += ds^T q
    dK *= scale

Shapes: k [BLOCK_N, D], v [BLOCK_N, Dv], q [BLOCK_M, D], dO [BLOCK_M, Dv]; dK, dV in float32 registers. The group is
summed here, in a fixed order: K and V are not repeated, and nothing is added atomically, so results repeat bit for bit.
"""

import triton
import triton.language as tl

from attn_backends.backends.triton_tiled.philox import kept
from attn_backends.backends.triton_tiled.present import SLOPES
from attn_backends.backends.triton_tiled.scores import (
    LOG2E,
    MINUS_INF,
    hidden,
    marked,
    score_tile,
    softcap_slope,
    weight_of,
)
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
from attn_backends.backends.triton_tiled.walk import heads_in_turn, query_stretches


@triton.jit(do_not_specialize=LENGTHS_AND_COUNTS, do_not_specialize_on_alignment=READ_ONE_BY_ONE)
def key_gradients(
    q, k, v, d_out, norms, rests, delta, d_k, d_v, slopes, mask, mask_strides, blocks, block_strides, inner, inner_strides, block_sizes, tile_lists, tile_counts,
    starts_q, starts_k, lengths_k,
    q_strides, k_strides, v_strides, d_out_strides, norm_strides, delta_strides, d_k_strides, d_v_strides, slope_strides, tile_strides,
    batches, num_kv_heads, gqa_ratio, longest_q, longest_k, head_dim, head_dim_v,
    scale, softcap, inner_scale, left, right, bottom_right, present, dropout_seed, dropout_threshold, dropout_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    PACKED_Q: tl.constexpr, PACKED_K: tl.constexpr, LENGTHS: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, PORTABLE: tl.constexpr, ALIGNED: tl.constexpr,
    SOFTCAP: tl.constexpr, BIAS: tl.constexpr, BOOL_MASK: tl.constexpr, BLOCK_MASK: tl.constexpr,
    INNER_MASK: tl.constexpr, ALIBI: tl.constexpr, DROPOUT: tl.constexpr,
    TMA: tl.constexpr, WIDE: tl.constexpr, PADDED_D: tl.constexpr, PADDED_DV: tl.constexpr,
    GUARD: tl.constexpr, EVEN_Q: tl.constexpr, PRECISION: tl.constexpr, FAST_TANH: tl.constexpr,
    WANT_K: tl.constexpr, WANT_V: tl.constexpr, EARLY: tl.constexpr,
):
    """Grid: one program per (key tile, KV head, sequence), one-dimensional, ordered by `walk.heads_in_turn`.

    Wide heads take two launches, one per gradient: both accumulators at once leave no registers for the tiles.
    EARLY: dp follows the scores' product at once: the matrix unit is at it while exponentials are made.
    """
    if PORTABLE:
        q_strides = tile_steps(q_strides, ALIGNED)
        k_strides = tile_steps(k_strides, ALIGNED)
        v_strides = tile_steps(v_strides, ALIGNED)
        d_out_strides = tile_steps(d_out_strides, ALIGNED)
        d_k_strides = tile_steps(d_k_strides, ALIGNED)
        d_v_strides = tile_steps(d_v_strides, ALIGNED)
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
    tiles = tl.cdiv(longest_k, BLOCK_N)
    tile, unit = heads_in_turn(tl.program_id(0), tiles, num_kv_heads * batches)
    kv_head = unit % num_kv_heads
    batch = unit // num_kv_heads
    first_q, seq_q = queries_of(batch, starts_q, longest_q, present, PACKED_Q, PORTABLE)
    first_k, seq_k = keys_of(batch, starts_k, lengths_k, longest_k, present, PACKED_K, LENGTHS, PORTABLE)
    start_k = tile * BLOCK_N
    if start_k >= seq_k:
        return
    offset = (seq_k - seq_q) * bottom_right
    keys = start_k + tl.arange(0, BLOCK_N)
    k_base = k if TMA else first_row(k, k_strides, batch, kv_head, first_k, PACKED_K)
    v_base = v if TMA else first_row(v, v_strides, batch, kv_head, first_k, PACKED_K)
    k_tile = load_rows(
        k, k_base, k_strides, batch, kv_head, first_k, start_k, seq_k, head_dim,
        BLOCK_N, BLOCK_D, TMA, PACKED_K, WIDE, True, PADDED_D,
    )
    if WANT_K:
        v_tile = load_rows(
            v, v_base, v_strides, batch, kv_head, first_k, start_k, seq_k, head_dim_v,
            BLOCK_N, BLOCK_DV, TMA, PACKED_K, WIDE, True, PADDED_DV,
        )

    begin, whole, cut, end = query_stretches(start_k, seq_q, seq_k, offset, left, right, BLOCK_M, BLOCK_N, LEFT, RIGHT)
    if WANT_K:
        grad_k = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    if WANT_V:
        grad_v = tl.zeros([BLOCK_N, BLOCK_DV], dtype=tl.float32)
    MASKED: tl.constexpr = BIAS or BOOL_MASK or BLOCK_MASK
    ALL_CUT: tl.constexpr = MASKED or PORTABLE
    ENDS_CUT: tl.constexpr = LEFT or not EVEN_Q
    STEP: tl.constexpr = 1 if BLOCK_MASK else BLOCK_M
    for member in tl.range(0, gqa_ratio, disable_licm=True):
        head = kv_head * gqa_ratio + member
        q_base = q if TMA else first_row(q, q_strides, batch, head, first_q, PACKED_Q)
        d_out_base = d_out if TMA else first_row(d_out, d_out_strides, batch, head, first_q, PACKED_Q)
        slope = 0.0
        if PORTABLE:
            slope = tl.load(slopes + batch * slope_strides[0] + head * slope_strides[1], mask=(present & SLOPES) != 0, other=0.0)
        elif ALIBI:
            slope = tl.load(slopes + batch * slope_strides[0] + head * slope_strides[1])
        if BLOCK_MASK:
            entry = batch * tile_strides[0] + head * tile_strides[1] + tile * tile_strides[2]
            listed = tl.load(tile_counts + entry)
            list_row = tile_lists + entry.to(tl.int64) * tile_strides[3]
        for stretch in tl.static_range(3):
            if stretch == 1 or (not ALL_CUT and ((stretch == 0 and RIGHT) or (stretch == 2 and ENDS_CUT))):
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
                for step in tl.range(low, high, STEP, disable_licm=True):
                    if BLOCK_MASK:
                        start = tl.load(list_row + step) * BLOCK_M
                    else:
                        start = step
                    queries = start + tl.arange(0, BLOCK_M)
                    q_tile = load_rows(
                        q, q_base, q_strides, batch, head, first_q, start, seq_q, head_dim,
                        BLOCK_M, BLOCK_D, TMA, PACKED_Q, WIDE, (stretch != 1 or ALL_CUT), PADDED_D,
                    )
                    d_out_tile = load_rows(
                        d_out, d_out_base, d_out_strides, batch, head, first_q, start, seq_q, head_dim_v,
                        BLOCK_M, BLOCK_DV, TMA, PACKED_Q, WIDE, (stretch != 1 or ALL_CUT), PADDED_DV,
                    ).to(q_tile.dtype)
                    if GUARD and (stretch == 2 or ALL_CUT):
                        q_tile = tl.where((queries < seq_q)[:, None], q_tile, 0.0)
                        d_out_tile = tl.where((queries < seq_q)[:, None], d_out_tile, 0.0)
                    norm = row_values(norms, norm_strides, batch, head, first_q, queries, seq_q, PACKED_Q)
                    if BIAS:
                        norm = tl.where(norm == MINUS_INF, 0.0, norm)
                        rest = row_values(rests, norm_strides, batch, head, first_q, queries, seq_q, PACKED_Q)
                    row = row_values(delta, delta_strides, batch, head, first_q, queries, seq_q, PACKED_Q)
                    product = tl.dot(k_tile, q_tile.T, input_precision=PRECISION)
                    if EARLY and WANT_K:
                        d_p = tl.dot(v_tile, d_out_tile.T, input_precision=PRECISION)
                    if SOFTCAP or BIAS or ALIBI or (stretch != 1 or ALL_CUT):
                        scores = score_tile(
                            product, queries[None, :], keys[:, None], mask, mask_strides, blocks, block_strides, inner, inner_strides, block_sizes, batch, head, slope, seq_q, seq_k, offset,
                            left, right, scale, softcap, inner_scale, LEFT, RIGHT, SOFTCAP, BIAS, BOOL_MASK, BLOCK_MASK, INNER_MASK,
                            ALIBI, (stretch != 1 or ALL_CUT), FAST_TANH, present, PORTABLE, True,
                        )
                        if BIAS:
                            p = weight_of(scores - norm[None, :], rest[None, :], BIAS)
                        else:
                            p = weight_of(scores, norm[None, :], BIAS)
                        if stretch != 1 or ALL_CUT:
                            p = marked(p, scores == MINUS_INF)
                    else:
                        p = tl.exp2(product * (scale * LOG2E) - norm[None, :])
                    if DROPOUT:
                        keep = kept(
                            dropout_seed, dropout_threshold, queries[None, :], keys[:, None], head, batch, BLOCK_N, BLOCK_M
                        )
                    weight = p  # of dp - delta: the cap's slope is multiplied in here, so that its tanh is not kept until dp is there
                    if SOFTCAP:
                        weight = p * softcap_slope(product, inner_scale, FAST_TANH)
                    if WANT_V:
                        used = p
                        if DROPOUT:
                            used = tl.where(keep, p * dropout_scale, 0.0)
                        grad_v = tl.dot(used.to(d_out_tile.dtype), d_out_tile, grad_v, input_precision=PRECISION)
                    if WANT_K:
                        if not EARLY:
                            d_p = tl.dot(v_tile, d_out_tile.T, input_precision=PRECISION)
                        if DROPOUT:
                            d_p = tl.where(keep, d_p * dropout_scale, 0.0)
                        d_s = weight * (d_p - row[None, :])
                        if stretch != 1 or ALL_CUT:
                            d_s = tl.where(hidden(p), 0.0, d_s)
                        grad_k = tl.dot(d_s.to(q_tile.dtype), q_tile, grad_k, input_precision=PRECISION)

    stored = (keys < seq_k)[:, None]
    if WANT_K:
        k_inside = stored & (tl.arange(0, BLOCK_D) < head_dim)[None, :] if PADDED_D else stored
        d_k_base = first_row(d_k, d_k_strides, batch, kv_head, first_k, PACKED_K)
        d_k_rows = tile_pointers(d_k_base, d_k_strides, start_k, BLOCK_N, BLOCK_D, WIDE)
        tl.store(d_k_rows, (grad_k * scale).to(d_k.dtype.element_ty), mask=k_inside)
    if WANT_V:
        v_inside = stored & (tl.arange(0, BLOCK_DV) < head_dim_v)[None, :] if PADDED_DV else stored
        d_v_base = first_row(d_v, d_v_strides, batch, kv_head, first_k, PACKED_K)
        d_v_rows = tile_pointers(d_v_base, d_v_strides, start_k, BLOCK_N, BLOCK_DV, WIDE)
        tl.store(d_v_rows, grad_v.to(d_v.dtype.element_ty), mask=v_inside)


KEYS = family(key_gradients)
# Where a ratio known to be 1 leaves a single loop, ptxas runs its products one after the other (C7515).
ANY_RATIO = triton.jit(
    key_gradients.fn, do_not_specialize=(*LENGTHS_AND_COUNTS, "gqa_ratio"), do_not_specialize_on_alignment=READ_ONE_BY_ONE
)
