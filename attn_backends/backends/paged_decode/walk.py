"""One item's walk over its split of the keys, for one tile of query rows of one KV head.

The rows of a tile are the query heads that share the KV head, token after token: row r is head r % group of token
r // group. For every tile of BLOCK_N keys:

    s   = scores(q k^T)                                       scores.py
    m'  = max(m, rowmax(s))
    p   = exp2(s - m')
    l   = l * exp2(m - m') + rowsum(p)
    acc = acc * exp2(m - m') + p v

Only tiles that a limit cuts for some row are masked. Where nothing is added to the products, they are scaled in the exponent,
behind their maximum.

A span that is one split is written to the output here; of several, each leaves acc / l and m + log2(l) for `combine`.

Descales multiply what they can reach cheapest: those of a whole head the row's scale or the result, those of K's channels
q, those of a token a column of the products or of p. A product in float16 takes q in powers of two of each row's largest
number, and p times 2^HEADROOM, so that neither leaves its range.

What a tile waits for is asked for ahead: its page numbers one tile before its keys, its descales one tile before their use.
"""

import triton
import triton.language as tl

from attn_backends.backends.paged_decode.merge import merge_when_last
from attn_backends.backends.paged_decode.pages import (
    channel_scales,
    load_tile,
    page_numbers,
    rows_in_cache,
    rows_of_v,
    token_scale,
    token_scales,
)
from attn_backends.backends.paged_decode.powers import (
    LEAST_SCALE,
    exponent_of,
    level_of,
    normalised,
    sign_and_size,
    steps_to_unit,
)
from attn_backends.backends.paged_decode.result import add_sink, store_partial, store_result
from attn_backends.backends.paged_decode.scores import MINUS_INF, hide, score_tile
from attn_backends.backends.paged_decode.widen import even_and_odd, interleaved, widened


@triton.jit
def load_queries(
    q, strides, sequence, first_q, tokens, heads, is_row, width, BLOCK_D: tl.constexpr, PACKED_Q: tl.constexpr
):
    """[BLOCK_M, BLOCK_D]; 0 in rows that are none and from column `width` on."""
    columns = tl.arange(0, BLOCK_D)
    rows = q + (first_q + tokens).to(tl.int64) * strides[2] + heads.to(tl.int64) * strides[1]
    if not PACKED_Q:
        rows += sequence.to(tl.int64) * strides[0]
    pointers = rows[:, None] + columns.to(tl.int64)[None, :] * strides[3]
    return tl.load(pointers, mask=is_row[:, None] & (columns < width)[None, :], other=0.0)


@triton.jit
def attend_rows(
    q, k, v, out, lse, partial_out, partial_lse, facts, table, starts_q, k_descale, v_descale, sinks, slopes,
    q_strides, k_strides, v_strides, out_strides, lse_strides, table_strides, k_scale_strides, v_scale_strides, slope_strides,
    item, before, unit, kv_heads, sequence, kv_head, tile, tiles, split, splits, steps, seq_q, seq_k, group,
    head_dim, head_dim_v, num_pages, scale, softcap, left, right,
    BLOCK_M: tl.constexpr, ROOM_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_DV: tl.constexpr,
    V_IN_K: tl.constexpr, PAGE_SIZE: tl.constexpr, INDEX: tl.constexpr, ROWS_ALIKE: tl.constexpr, PADDED_D: tl.constexpr, PADDED_DV: tl.constexpr,
    PACKED_Q: tl.constexpr, QK_TYPE: tl.constexpr, PV_TYPE: tl.constexpr, PRECISION: tl.constexpr, POSITIVE: tl.constexpr,
    NORMALISE_Q: tl.constexpr, HEADROOM: tl.constexpr, K_SCALE: tl.constexpr, V_SCALE: tl.constexpr, V_PAIRS: tl.constexpr,
    HARDWARE: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, BOTTOM_RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr,
    SINKS: tl.constexpr, STORE_LSE: tl.constexpr, MERGE_ROWS: tl.constexpr, MERGE_SPLITS: tl.constexpr, IN_REGISTERS: tl.constexpr,
):
    """Attend BLOCK_M rows from row tile * BLOCK_M of the sequence on to one split of what they may see.

    item, before: of the batch's items this one, and how many are before the sequence's; they say where partial results are
    unit: of this query tile's counter, if MERGE_ROWS
    MERGE_ROWS: where not 0, the last split of a tile to end merges all of them, of so many rows, MERGE_SPLITS at a time; else
        `combine` does
    IN_REGISTERS: the next tile of K and V waits in registers, and leaves the L2 cache first; else Triton fetches ahead, into
        shared memory. Not where there is a BLOCK_R.
    BLOCK_R: columns of q and K behind the first BLOCK_D, as a tile of their own; 0 where there are none.
    V_IN_K: V is the first BLOCK_DV = BLOCK_D columns of K, in the same memory: a tile is read once, for both products.
    INDEX, ROWS_ALIKE: as in `pages`. POSITIVE: scale is at least 2^-100.
    V_PAIRS: "" or the format of a V that comes as pairs of columns (uint16, strides and width in pairs).
    """
    first_row = tile * BLOCK_M
    rows = first_row + tl.arange(0, BLOCK_M)
    is_row = rows < seq_q * group
    tokens = rows // group
    heads = kv_head * group + rows % group
    offset = seq_k - seq_q if BOTTOM_RIGHT else 0
    positions = tokens + offset
    first_q = 0
    if PACKED_Q:
        first_q = tl.load(starts_q + sequence)

    first = 0
    last = seq_k
    last_token = (tl.minimum(first_row + BLOCK_M, seq_q * group) - 1) // group
    if LEFT:
        first = tl.maximum(first_row // group + offset - left, 0)
    if RIGHT:
        last = tl.minimum(seq_k, last_token + offset + right + 1)
    share = tl.cdiv(steps, splits) * BLOCK_N
    start = first // BLOCK_N * BLOCK_N + split * share
    stop = tl.minimum(start + share, last)

    lanes = tl.arange(0, BLOCK_N)
    table_row = table + sequence.to(tl.int64) * table_strides[0]
    pages = page_numbers(table_row, table_strides[1], start, lanes, stop, num_pages, PAGE_SIZE, BLOCK_N)
    q_tile = load_queries(q, q_strides, sequence, first_q, tokens, heads, is_row, head_dim, BLOCK_D, PACKED_Q)
    if BLOCK_R > 0:
        q_rest = load_queries(
            q + BLOCK_D * q_strides[3],
            q_strides,
            sequence,
            first_q,
            tokens,
            heads,
            is_row,
            head_dim - BLOCK_D,
            BLOCK_R,
            PACKED_Q,
        )
    row_scale = tl.zeros([BLOCK_M], dtype=tl.float32) + scale
    if K_SCALE == "channel":
        q_tile = q_tile.to(tl.float32) * channel_scales(k_descale, k_scale_strides, kv_head, head_dim, BLOCK_D)[None, :]
        if BLOCK_R > 0:
            rest_scales = channel_scales(
                k_descale + BLOCK_D * k_scale_strides[2], k_scale_strides, kv_head, head_dim - BLOCK_D, BLOCK_R
            )
            q_rest = q_rest.to(tl.float32) * rest_scales[None, :]
    if K_SCALE == "head":
        row_scale *= tl.load(k_descale + sequence * k_scale_strides[0] + kv_head * k_scale_strides[1])
    if NORMALISE_Q:
        largest_q = tl.max(tl.abs(q_tile.to(tl.float32)), 1)
        if BLOCK_R > 0:
            largest_q = tl.maximum(largest_q, tl.max(tl.abs(q_rest.to(tl.float32)), 1))
        exponent = exponent_of(largest_q)
        q_tile = normalised(q_tile.to(tl.float32), exponent)
        if BLOCK_R > 0:
            q_rest = normalised(q_rest.to(tl.float32), exponent)
        row_scale *= tl.exp2(exponent - 14.0)
    HUGE: tl.constexpr = K_SCALE == "head" and tl.float32 == QK_TYPE  # products that LEAST_SCALE would not make 0
    SCALE_LATE: tl.constexpr = POSITIVE and not SOFTCAP and not ALIBI and V_SCALE != "token" and not HUGE
    if SCALE_LATE:
        if K_SCALE == "head":
            sign, row_scale = sign_and_size(row_scale)
            q_tile = q_tile * sign[:, None]
            if BLOCK_R > 0:
                q_rest = q_rest * sign[:, None]
        row_scale = tl.where(row_scale < LEAST_SCALE, LEAST_SCALE, row_scale)  # hidden keys are -inf times it
    q_tile = q_tile.to(QK_TYPE)
    if BLOCK_R > 0:
        q_rest = q_rest.to(QK_TYPE)
    slope = tl.zeros([BLOCK_M], dtype=tl.float32)
    if ALIBI:
        slope = tl.load(slopes + sequence * slope_strides[0] + heads * slope_strides[1], mask=is_row, other=0.0)

    if V_SCALE == "token":
        first_scale = token_scale(
            v_descale,
            v_scale_strides,
            table_row,
            table_strides[1],
            tl.maximum(start, first),
            stop,
            kv_head,
            num_pages,
            PAGE_SIZE,
        )
        shrink, shrink_more = steps_to_unit(tl.abs(first_scale))

    whole_from = 0  # from here to `whole_to` every row sees every key
    whole_to = stop
    if LEFT:
        whole_from = last_token + offset - left
    if RIGHT:
        whole_to = tl.minimum(stop, first_row // group + offset + right + 1)
    PAIRED: tl.constexpr = V_PAIRS != ""
    V_LIKE_K: tl.constexpr = ROWS_ALIKE and not PAIRED
    WIDTH_V: tl.constexpr = BLOCK_DV // 2 if PAIRED else BLOCK_DV
    LATE_SUM: tl.constexpr = BLOCK_M == 16  # sums over keys cross warps; one at the end is enough
    top = tl.full([BLOCK_M], MINUS_INF, dtype=tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_N if LATE_SUM else 1], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, WIDTH_V], dtype=tl.float32)
    odd_acc = tl.zeros([BLOCK_M, WIDTH_V if PAIRED else 1], dtype=tl.float32)
    if IN_REGISTERS:
        is_key = start + lanes < stop
        if LEFT:
            is_key = is_key & (start + lanes >= first)  # later tiles begin at or behind `first`
        k_rows = rows_in_cache(pages, start, lanes, k_strides[0], k_strides[1], INDEX, PAGE_SIZE, BLOCK_N)
        k_ahead = load_tile(k, k_strides, k_rows, is_key, kv_head, head_dim, BLOCK_D, PADDED_D, True, "evict_first")
        v_rows = rows_of_v(k_rows, pages, start, lanes, v_strides, V_LIKE_K, INDEX, PAGE_SIZE, BLOCK_N)
        v_ahead = load_tile(v, v_strides, v_rows, is_key, kv_head, head_dim_v, WIDTH_V, PADDED_DV, True, "evict_first")
        pages_ahead = page_numbers(
            table_row, table_strides[1], start + BLOCK_N, lanes, stop, num_pages, PAGE_SIZE, BLOCK_N
        )
    tiles_of_keys = tl.cdiv(tl.maximum(stop - start, 0), BLOCK_N)
    for place in tl.range(0, tiles_of_keys):  # from 0 on: triton 3.7 fetches no V ahead where a loop begins anywhere
        step = start + place * BLOCK_N
        keys = step + lanes
        inside = keys < stop
        if LEFT:
            inside = inside & (keys >= first)
        if IN_REGISTERS:
            k_tile, v_tile, pages_here, pages = k_ahead, v_ahead, pages, pages_ahead
            is_key = keys < stop - BLOCK_N
            following = step + BLOCK_N
            k_rows = rows_in_cache(pages, following, lanes, k_strides[0], k_strides[1], INDEX, PAGE_SIZE, BLOCK_N)
            k_ahead = load_tile(k, k_strides, k_rows, is_key, kv_head, head_dim, BLOCK_D, PADDED_D, True, "evict_first")
            v_rows = rows_of_v(k_rows, pages, following, lanes, v_strides, V_LIKE_K, INDEX, PAGE_SIZE, BLOCK_N)
            v_ahead = load_tile(
                v, v_strides, v_rows, is_key, kv_head, head_dim_v, WIDTH_V, PADDED_DV, True, "evict_first"
            )
            pages_ahead = page_numbers(
                table_row, table_strides[1], following + BLOCK_N, lanes, stop, num_pages, PAGE_SIZE, BLOCK_N
            )
        else:
            pages_here = pages
            pages = page_numbers(
                table_row, table_strides[1], step + BLOCK_N, lanes, stop, num_pages, PAGE_SIZE, BLOCK_N
            )
            k_rows = rows_in_cache(pages_here, step, lanes, k_strides[0], k_strides[1], INDEX, PAGE_SIZE, BLOCK_N)
            k_tile = load_tile(k, k_strides, k_rows, inside, kv_head, head_dim, BLOCK_D, PADDED_D, V_IN_K, "")
        product = tl.dot(q_tile, widened(k_tile, QK_TYPE, HARDWARE).T, input_precision=PRECISION)
        if BLOCK_R > 0:
            k_rest = load_tile(
                k + BLOCK_D * k_strides[3],
                k_strides,
                k_rows,
                inside,
                kv_head,
                head_dim - BLOCK_D,
                BLOCK_R,
                False,
                False,
                "",
            )
            product = tl.dot(q_rest, widened(k_rest, QK_TYPE, HARDWARE).T, product, input_precision=PRECISION)
        if K_SCALE == "token":
            product *= token_scales(
                k_descale, k_scale_strides, pages_here, step, lanes, inside, kv_head, PAGE_SIZE, BLOCK_N
            )[None, :]
        if SCALE_LATE:
            scores = product
        else:
            scores = score_tile(product, row_scale, positions, keys, softcap, slope, SOFTCAP, ALIBI)
        cut = True
        if BLOCK_M > 16:  # a tile of so few rows waits for memory, and is cheap to mask
            cut = (step < whole_from) | (step + BLOCK_N > whole_to)
        if cut:
            scores = hide(scores, positions, keys, inside, left, right, LEFT, RIGHT)
        levels = scores
        if V_SCALE == "token":
            v_scales = token_scales(
                v_descale, v_scale_strides, pages_here, step, lanes, inside, kv_head, PAGE_SIZE, BLOCK_N
            )
            v_scales = v_scales * shrink * shrink_more
            levels = scores + level_of(v_scales)[None, :]
        highest = tl.max(levels, 1)
        if SCALE_LATE:
            highest *= row_scale
        top_new = tl.maximum(top, highest)
        shift = tl.where(top_new == MINUS_INF, 0.0, top_new - HEADROOM)
        if SCALE_LATE:
            scores *= row_scale[:, None]
        p = tl.exp2(scores - shift[:, None])
        fade = tl.exp2(top - HEADROOM - shift)[:, None]
        if LATE_SUM:
            total = total * fade + p
        else:
            total = total * fade + tl.sum(p, 1)[:, None]
        if V_IN_K:
            v_tile = k_tile
        elif not IN_REGISTERS:
            v_rows = rows_of_v(k_rows, pages_here, step, lanes, v_strides, V_LIKE_K, INDEX, PAGE_SIZE, BLOCK_N)
            v_tile = load_tile(v, v_strides, v_rows, inside, kv_head, head_dim_v, WIDTH_V, PADDED_DV, True, "")
        weights = p * v_scales[None, :] if V_SCALE == "token" else p
        weights = weights.to(PV_TYPE)
        if PAIRED:
            even, odd = even_and_odd(v_tile, V_PAIRS, HARDWARE)
            acc = tl.dot(weights, even, acc * fade, input_precision=PRECISION)
            odd_acc = tl.dot(weights, odd, odd_acc * fade, input_precision=PRECISION)
        else:
            acc = tl.dot(weights, widened(v_tile, PV_TYPE, HARDWARE), acc * fade, input_precision=PRECISION)
        top = top_new

    if PAIRED:
        acc = interleaved(acc, odd_acc, BLOCK_M, BLOCK_DV)
    if V_SCALE == "token":
        acc = acc * (1.0 / shrink) * (1.0 / shrink_more)
    if V_SCALE == "head":
        acc *= tl.load(v_descale + sequence * v_scale_strides[0] + kv_head * v_scale_strides[1])
    if V_SCALE == "channel":
        width_v = head_dim_v * 2 if PAIRED else head_dim_v
        acc *= channel_scales(v_descale, v_scale_strides, kv_head, width_v, BLOCK_DV)[None, :]
    top -= HEADROOM
    sums = tl.sum(total, 1)
    if splits > 1:
        program = item * kv_heads + kv_head
        store_partial(partial_out, partial_lse, program, acc, top, sums, is_row, BLOCK_M, ROOM_M, BLOCK_DV)
        if MERGE_ROWS > 0:
            merge_when_last(
                partial_out,
                partial_lse,
                facts + unit * kv_heads + kv_head,
                out,
                lse,
                sinks,
                out_strides,
                lse_strides,
                before + tile,
                tiles,
                splits,
                kv_heads,
                kv_head,
                sequence,
                first_q,
                first_row,
                seq_q,
                group,
                head_dim_v * 2 if PAIRED else head_dim_v,
                ROOM_M,
                BLOCK_DV,
                MERGE_ROWS,
                MERGE_SPLITS,
                PACKED_Q,
                SINKS,
                STORE_LSE,
            )
    else:
        if SINKS:
            acc, top, sums = add_sink(acc, top, sums, tl.load(sinks + heads, mask=is_row, other=MINUS_INF))
        store_result(
            out,
            lse,
            out_strides,
            lse_strides,
            sequence,
            first_q,
            tokens,
            heads,
            is_row,
            head_dim_v * 2 if PAIRED else head_dim_v,
            acc,
            top,
            sums,
            BLOCK_DV,
            PACKED_Q,
            STORE_LSE,
        )
