"""The gradient of a float mask: one program owns one tile of it and sums over what the mask broadcasts to.

    d bias[b, h, i, j] = sum over the sequences and heads that share the entry of p_ij (dp_ij - delta_i)

A mask that broadcasts over queries (or keys) is summed inside the tile as well; the parts of the tiles then stand
side by side in memory, [.., query tiles | Sq, key tiles | Sk] in float32, for the host to add up. Every entry is
written once, in a fixed order of sums.
"""

import triton
import triton.language as tl

from attn_backends.backends.triton_tiled.philox import kept
from attn_backends.backends.triton_tiled.present import SLOPES
from attn_backends.backends.triton_tiled.scores import MINUS_INF, score_tile, weight_of
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
    tile_steps,
)


@triton.jit(do_not_specialize=LENGTHS_AND_COUNTS, do_not_specialize_on_alignment=READ_ONE_BY_ONE)
def bias_gradients(
    q, k, v, d_out, norms, rests, delta, parts, slopes, mask, mask_strides, blocks, block_strides, inner, inner_strides, block_sizes,
    starts_q, starts_k, lengths_k,
    q_strides, k_strides, v_strides, d_out_strides, norm_strides, delta_strides, part_strides, slope_strides,
    batches, heads, gqa_ratio, longest_q, longest_k, head_dim, head_dim_v,
    scale, softcap, inner_scale, left, right, bottom_right, present, dropout_seed, dropout_threshold, dropout_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    PACKED_Q: tl.constexpr, PACKED_K: tl.constexpr, LENGTHS: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, PORTABLE: tl.constexpr, ALIGNED: tl.constexpr,
    SOFTCAP: tl.constexpr, BIAS: tl.constexpr, BOOL_MASK: tl.constexpr, BLOCK_MASK: tl.constexpr,
    INNER_MASK: tl.constexpr, ALIBI: tl.constexpr, DROPOUT: tl.constexpr,
    WIDE: tl.constexpr, PADDED_D: tl.constexpr, PADDED_DV: tl.constexpr, PRECISION: tl.constexpr, FAST_TANH: tl.constexpr,
    ALL_BATCHES: tl.constexpr, ALL_HEADS: tl.constexpr, ALL_QUERIES: tl.constexpr, ALL_KEYS: tl.constexpr,
):
    """Grid: (query tiles x key tiles, heads of the mask, sequences of the mask). ALL_x: the mask broadcasts over x."""
    if PORTABLE:
        q_strides = tile_steps(q_strides, ALIGNED)
        k_strides = tile_steps(k_strides, ALIGNED)
        v_strides = tile_steps(v_strides, ALIGNED)
        d_out_strides = tile_steps(d_out_strides, ALIGNED)
        mask_strides = any_steps(mask_strides)
        block_strides = any_steps(block_strides)
        inner_strides = any_steps(inner_strides)
        part_strides = any_steps(part_strides)
        block_sizes = pair_of(block_sizes)
        slope_strides = pair_of(slope_strides)
        norm_strides = row_steps(norm_strides)
        delta_strides = row_steps(delta_strides)
        if ALIGNED:
            head_dim = head_dim // 16 * 16
            head_dim_v = head_dim_v // 16 * 16
    key_tiles = tl.cdiv(longest_k, BLOCK_N)
    tile_q = tl.program_id(0) // key_tiles
    tile_k = tl.program_id(0) % key_tiles
    queries = tile_q * BLOCK_M + tl.arange(0, BLOCK_M)
    keys = tile_k * BLOCK_N + tl.arange(0, BLOCK_N)
    first_batch = 0 if ALL_BATCHES else tl.program_id(2)
    first_head = 0 if ALL_HEADS else tl.program_id(1)
    entries = batches if ALL_BATCHES else 1
    members = heads if ALL_HEADS else 1
    grad = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for pair in tl.range(0, entries * members):
        batch = first_batch + pair // members
        head = first_head + pair % members
        kv_head = head // gqa_ratio
        first_q, seq_q = queries_of(batch, starts_q, longest_q, present, PACKED_Q, PORTABLE)
        first_k, seq_k = keys_of(batch, starts_k, lengths_k, longest_k, present, PACKED_K, LENGTHS, PORTABLE)
        offset = (seq_k - seq_q) * bottom_right
        q_base = first_row(q, q_strides, batch, head, first_q, PACKED_Q)
        d_out_base = first_row(d_out, d_out_strides, batch, head, first_q, PACKED_Q)
        k_base = first_row(k, k_strides, batch, kv_head, first_k, PACKED_K)
        v_base = first_row(v, v_strides, batch, kv_head, first_k, PACKED_K)
        q_tile = load_rows(
            q, q_base, q_strides, batch, head, first_q, tile_q * BLOCK_M, seq_q, head_dim,
            BLOCK_M, BLOCK_D, False, PACKED_Q, WIDE, True, PADDED_D,
        )
        d_out_tile = load_rows(
            d_out, d_out_base, d_out_strides, batch, head, first_q, tile_q * BLOCK_M, seq_q, head_dim_v,
            BLOCK_M, BLOCK_DV, False, PACKED_Q, WIDE, True, PADDED_DV,
        ).to(q_tile.dtype)
        k_tile = load_rows(
            k, k_base, k_strides, batch, kv_head, first_k, tile_k * BLOCK_N, seq_k, head_dim,
            BLOCK_N, BLOCK_D, False, PACKED_K, WIDE, True, PADDED_D,
        )
        v_tile = load_rows(
            v, v_base, v_strides, batch, kv_head, first_k, tile_k * BLOCK_N, seq_k, head_dim_v,
            BLOCK_N, BLOCK_DV, False, PACKED_K, WIDE, True, PADDED_DV,
        )
        norm = row_values(norms, norm_strides, batch, head, first_q, queries, seq_q, PACKED_Q)
        norm = tl.where(norm == MINUS_INF, 0.0, norm)
        if BIAS:
            rest = row_values(rests, norm_strides, batch, head, first_q, queries, seq_q, PACKED_Q)
        row = row_values(delta, delta_strides, batch, head, first_q, queries, seq_q, PACKED_Q)
        slope = 0.0
        if PORTABLE:
            slope = tl.load(slopes + batch * slope_strides[0] + head * slope_strides[1], mask=(present & SLOPES) != 0, other=0.0)
        elif ALIBI:
            slope = tl.load(slopes + batch * slope_strides[0] + head * slope_strides[1])
        product = tl.dot(q_tile, k_tile.T, input_precision=PRECISION)
        scores = score_tile(
            product, queries[:, None], keys[None, :], mask, mask_strides, blocks, block_strides, inner, inner_strides, block_sizes, batch, head, slope, seq_q, seq_k, offset,
            left, right, scale, softcap, inner_scale, LEFT, RIGHT, SOFTCAP, BIAS, BOOL_MASK, BLOCK_MASK, INNER_MASK, ALIBI, True, FAST_TANH, present, PORTABLE,
        )
        d_p = tl.dot(d_out_tile, v_tile.T, input_precision=PRECISION)
        if DROPOUT:
            keep = kept(
                dropout_seed, dropout_threshold, queries[:, None], keys[None, :], head, batch, BLOCK_M, BLOCK_N
            )
            d_p = tl.where(keep, d_p * dropout_scale, 0.0)
        d_s = weight_of(scores - norm[:, None], rest[:, None], BIAS) * (d_p - row[:, None])
        grad += tl.where(scores == MINUS_INF, 0.0, d_s)

    part = parts + tl.program_id(2).to(tl.int64) * part_strides[0] + tl.program_id(1).to(tl.int64) * part_strides[1]
    if ALL_QUERIES and ALL_KEYS:
        tl.store(part + tile_q * part_strides[2] + tile_k, tl.sum(tl.sum(grad, 1), 0))
    elif ALL_QUERIES:
        tl.store(part + tile_q * part_strides[2] + keys, tl.sum(grad, 0), mask=keys < longest_k)
    elif ALL_KEYS:
        tl.store(part + queries * part_strides[2] + tile_k, tl.sum(grad, 1), mask=queries < longest_q)
    else:
        inside = (queries < longest_q)[:, None] & (keys < longest_k)[None, :]
        tl.store(part + queries.to(tl.int64)[:, None] * part_strides[2] + keys[None, :], grad, mask=inside)


BIAS_PARTS = family(bias_gradients)
