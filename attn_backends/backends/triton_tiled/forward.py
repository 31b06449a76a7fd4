"""The forward kernel: one program owns BLOCK_M queries of one head and walks over the keys that they may see.

    for every tile of BLOCK_N keys:
        s   = scores(q k^T)                      log2 domain, -inf where hidden          scores.py
        m'  = max(m, rowmax(s))
        p   = exp2(s - m')
        l   = l * exp2(m - m') + rowsum(p)
        acc = acc * exp2(m - m') + p v
    out = acc / l,   lse = (m + log2(l)) * ln 2

Where a softcap alone bounds the scores (BOUNDED), m is that bound from the start: exp2(m - m') is 1 and nothing is
rescaled. The last line holds for every m. A row that saw nothing has l = 0 then, and m = -inf behind the loop. With PARTS,
where a warp has whole rows of scores, threads sum up what is theirs, columns 8 apart, until the loop ends.

Shapes: q [BLOCK_M, D], k [BLOCK_N, D], v [BLOCK_N, Dv]; m, l [BLOCK_M] and acc [BLOCK_M, Dv] in float32. The sink
enters once, behind the loop. The keys split into three stretches: those where the window's left edge cuts some row,
those that every row sees (no mask is computed there), and those where the diagonal or the sequence's end cuts. Tiles
that no row sees are not visited. A dense mask or a block mask makes every visited tile a cut one.
"""

import triton
import triton.language as tl

from attn_backends.backends.triton_tiled.philox import kept
from attn_backends.backends.triton_tiled.present import SINK, SLOPES
from attn_backends.backends.triton_tiled.scores import (
    LN2,
    MINUS_INF,
    band_tile,
    bound_of,
    plain_scores,
    score_tile,
    unit_of,
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
    store_rows,
    tile_pointers,
    tile_steps,
)
from attn_backends.backends.triton_tiled.walk import key_stretches
from attn_backends.backends.triton_tiled.weights import capped_weights, undone


@triton.jit(do_not_specialize=LENGTHS_AND_COUNTS, do_not_specialize_on_alignment=READ_ONE_BY_ONE)
def attention_forward(
    q, k, v, out, lse, sinks, slopes, mask, mask_strides, blocks, block_strides, inner, inner_strides, block_sizes, tile_lists, tile_counts, visits, tops, rests,
    starts_q, starts_k, lengths_k,
    q_strides, k_strides, v_strides, out_strides, lse_strides, top_strides, slope_strides, tile_strides,
    num_q_heads, gqa_ratio, longest_q, longest_k, head_dim, head_dim_v,
    scale, softcap, inner_scale, left, right, bottom_right, present, dropout_seed, dropout_threshold, dropout_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    PACKED_Q: tl.constexpr, PACKED_K: tl.constexpr, LENGTHS: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, PORTABLE: tl.constexpr, ALIGNED: tl.constexpr,
    SOFTCAP: tl.constexpr, BIAS: tl.constexpr, BOOL_MASK: tl.constexpr, BLOCK_MASK: tl.constexpr, INNER_MASK: tl.constexpr,
    ALIBI: tl.constexpr, SINKS: tl.constexpr, DROPOUT: tl.constexpr, NEGATE_Q: tl.constexpr,
    TMA: tl.constexpr, WIDE: tl.constexpr, PADDED_D: tl.constexpr, PADDED_DV: tl.constexpr,
    EVEN_K: tl.constexpr, GUARD_V: tl.constexpr, COUNTED: tl.constexpr, PRECISION: tl.constexpr, FAST_TANH: tl.constexpr,
    STORE_LSE: tl.constexpr, STORE_TOPS: tl.constexpr, BOUNDED: tl.constexpr, CUBICS: tl.constexpr, PARTS: tl.constexpr,
):
    """Grid: one program per (query tile, head, sequence), one-dimensional; the tile with the longest walk first."""
    if PORTABLE:
        q_strides = tile_steps(q_strides, ALIGNED)
        k_strides = tile_steps(k_strides, ALIGNED)
        v_strides = tile_steps(v_strides, ALIGNED)
        out_strides = tile_steps(out_strides, ALIGNED)
        mask_strides = any_steps(mask_strides)
        block_strides = any_steps(block_strides)
        inner_strides = any_steps(inner_strides)
        block_sizes = pair_of(block_sizes)
        slope_strides = pair_of(slope_strides)
        tile_strides = any_steps(tile_strides)
        lse_strides = row_steps(lse_strides)
        top_strides = row_steps(top_strides)
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
    k_base = k if TMA else first_row(k, k_strides, batch, kv_head, first_k, PACKED_K)
    v_base = v if TMA else first_row(v, v_strides, batch, kv_head, first_k, PACKED_K)
    q_tile = load_rows(
        q, q_base, q_strides, batch, head, first_q, start_q, seq_q, head_dim,
        BLOCK_M, BLOCK_D, TMA, PACKED_Q, WIDE, True, PADDED_D,
    )
    if NEGATE_Q:
        q_tile = -q_tile
    slope = 0.0
    if PORTABLE:
        slope = tl.load(slopes + batch * slope_strides[0] + head * slope_strides[1], mask=(present & SLOPES) != 0, other=0.0)
    elif ALIBI:
        slope = tl.load(slopes + batch * slope_strides[0] + head * slope_strides[1])

    begin, whole, cut, end = key_stretches(start_q, seq_q, seq_k, offset, left, right, BLOCK_M, BLOCK_N, LEFT, RIGHT)
    top = tl.full([BLOCK_M], MINUS_INF, dtype=tl.float32)
    if BOUNDED:
        top = tl.zeros([BLOCK_M], dtype=tl.float32) + bound_of(softcap)
    total = tl.zeros([BLOCK_M, 8] if PARTS else [BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], dtype=tl.float32)
    visited = 0
    if BLOCK_MASK:
        entry = batch * tile_strides[0] + head * tile_strides[1] + tile * tile_strides[2]
        listed = tl.load(tile_counts + entry)
        list_row = tile_lists + entry.to(tl.int64) * tile_strides[3]

    MASKED: tl.constexpr = BIAS or BOOL_MASK or BLOCK_MASK
    ALL_CUT: tl.constexpr = MASKED or PORTABLE
    ENDS_CUT: tl.constexpr = LEFT or RIGHT or not EVEN_K
    STEP: tl.constexpr = 1 if BLOCK_MASK else BLOCK_N
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
                product = tl.dot(q_tile, k_tile.T, input_precision=PRECISION)
                if BOUNDED and not ALL_CUT:
                    x, factor = plain_scores(product, scale, softcap, inner_scale, SOFTCAP, FAST_TANH)
                    p = capped_weights(x, factor, bound_of(softcap), CUBICS)
                    if stretch != 1:
                        visible = band_tile(queries[:, None], keys[None, :], seq_q, seq_k, offset, left, right, LEFT, RIGHT, False)
                        p = tl.where(visible, p, 0.0)
                elif BIAS or ALIBI or (stretch != 1 or ALL_CUT):
                    scores = score_tile(
                        product, queries[:, None], keys[None, :], mask, mask_strides, blocks, block_strides, inner, inner_strides, block_sizes, batch, head, slope, seq_q, seq_k, offset,
                        left, right, scale, softcap, inner_scale, LEFT, RIGHT, SOFTCAP, BIAS, BOOL_MASK, BLOCK_MASK, INNER_MASK,
                        ALIBI, (stretch != 1 or ALL_CUT), FAST_TANH, present, PORTABLE,
                    )
                    top_new = top if BOUNDED else tl.maximum(top, tl.max(scores, 1))
                    shift = tl.where(top_new == MINUS_INF, 0.0, top_new) if (stretch != 1 or ALL_CUT) and not BOUNDED else top_new
                    p = weight_of(scores, shift[:, None], BIAS)
                else:
                    scores, factor = plain_scores(product, scale, softcap, inner_scale, SOFTCAP, FAST_TANH)
                    top_new = tl.maximum(top, tl.max(scores, 1) * factor)
                    shift = top_new
                    p = tl.exp2(scores * factor - shift[:, None])
                if PARTS:
                    total += tl.sum(p.reshape([BLOCK_M, BLOCK_N // 8, 8]), 1)
                elif BOUNDED:
                    total += tl.sum(p, 1)
                else:
                    fade = weight_of(top, shift, BIAS)
                    total = total * fade + tl.sum(p, 1)
                    acc = acc * fade[:, None]
                    top = top_new
                if DROPOUT:
                    keep = kept(dropout_seed, dropout_threshold, queries[:, None], keys[None, :], head, batch, BLOCK_M, BLOCK_N)
                    p = tl.where(keep, p * dropout_scale, 0.0)
                v_tile = load_rows(
                    v, v_base, v_strides, batch, kv_head, first_k, start, end, head_dim_v,
                    BLOCK_N, BLOCK_DV, TMA, PACKED_K, WIDE, (stretch != 1 or ALL_CUT), PADDED_DV,
                )
                if (stretch != 1 or ALL_CUT) and GUARD_V:
                    if MASKED:
                        seen = tl.max(scores, 0) > MINUS_INF
                    else:
                        seen = keys < end
                    v_tile = tl.where(seen[:, None], v_tile, 0.0)
                acc = tl.dot(p.to(v_tile.dtype), v_tile, acc, input_precision=PRECISION)
                if COUNTED:
                    visited += 1

    if PARTS:
        total = tl.sum(total, 1)
    if BOUNDED:
        total = undone(total, CUBICS)
        top = tl.where(total != 0.0, top, MINUS_INF)
    if SINKS:
        if PORTABLE:
            sink = tl.load(sinks + head, mask=(present & SINK) != 0, other=MINUS_INF).to(tl.float32) * unit_of(BIAS)
        else:
            sink = tl.load(sinks + head).to(tl.float32) * unit_of(BIAS)
        top_new = tl.maximum(top, sink)
        shift = tl.where(top_new == MINUS_INF, 0.0, top_new)
        fade = weight_of(top, shift, BIAS)
        total = total * fade + weight_of(sink, shift, BIAS)
        acc = acc * fade[:, None]
        top = top_new
    filled = tl.where(total != 0.0, total, 1.0)
    acc = tl.where((total != 0.0)[:, None], acc / filled[:, None], 0.0)

    out_base = first_row(out, out_strides, batch, head, first_q, PACKED_Q)
    columns = tl.arange(0, BLOCK_DV)
    inside = (queries < seq_q)[:, None]
    if PADDED_DV:
        inside = inside & (columns < head_dim_v)[None, :]
    tl.store(
        tile_pointers(out_base, out_strides, start_q, BLOCK_M, BLOCK_DV, WIDE), acc.to(out.dtype.element_ty), mask=inside
    )
    rest = tl.log2(filled) * LN2
    if STORE_LSE:
        natural = tl.where(total != 0.0, top / unit_of(BIAS) + rest, MINUS_INF)
        store_rows(lse, lse_strides, batch, head, first_q, queries, seq_q, natural, PACKED_Q)
    if STORE_TOPS:
        store_rows(tops, top_strides, batch, head, first_q, queries, seq_q, tl.where(total != 0.0, top, MINUS_INF), PACKED_Q)
        store_rows(rests, top_strides, batch, head, first_q, queries, seq_q, rest, PACKED_Q)
    if COUNTED:
        tl.store(visits + program, visited)


FORWARD = family(attention_forward)
