"""What becomes of acc, m and l of a tile of rows: the output and its LSE, or a part of them for `combine`.

out = acc / l,   lse = (m + log2(l)) ln 2;   0 and -inf where a row saw nothing, NaN where it saw NaN
"""

import triton
import triton.language as tl

from attn_backends.backends.paged_decode.scores import LN2, LOG2E, MINUS_INF


@triton.jit
def finished(acc, top, total):
    """(acc / l, m + log2(l)): rows of a result, and their LSE in log2 units."""
    seen = total != 0.0
    filled = tl.where(seen, total, 1.0)
    return tl.where(seen[:, None], acc / filled[:, None], 0.0), tl.where(seen, top + tl.log2(filled), MINUS_INF)


@triton.jit
def add_sink(acc, top, total, sink):
    """(acc, m, l) with one more key per row, of a raw logit and no value; -inf is none."""
    score = sink * LOG2E
    top_new = tl.maximum(top, score)
    shift = tl.where(top_new == MINUS_INF, 0.0, top_new)
    fade = tl.exp2(top - shift)
    return acc * fade[:, None], top_new, total * fade + tl.exp2(score - shift)


@triton.jit
def store_facts(facts, unit, first_item, sequence, tile, splits):
    """What `combine` must know of a query tile, int32 [units, 4]: splits, the first one's item, sequence, tile."""
    tl.store(facts + unit * 4, splits)
    tl.store(facts + unit * 4 + 1, first_item)
    tl.store(facts + unit * 4 + 2, sequence)
    tl.store(facts + unit * 4 + 3, tile)


@triton.jit
def forget_tiles(facts, first, units):
    """Query tiles from `first` on are none."""
    for unit in range(first, units, 128):
        places = unit + tl.arange(0, 128)
        tl.store(facts + places * 4, 0, mask=places < units)


@triton.jit
def store_partial(
    partial_out, partial_lse, program, acc, top, total, is_row,
    BLOCK_M: tl.constexpr, ROOM_M: tl.constexpr, BLOCK_DV: tl.constexpr,
):
    """The first BLOCK_M of the program's own rows of partial_out [programs, ROOM_M, BLOCK_DV] and partial_lse [programs, ROOM_M]."""
    values, log2_sum = finished(acc, top, total)
    entries = program.to(tl.int64) * ROOM_M + tl.arange(0, BLOCK_M)
    tl.store(partial_lse + entries, log2_sum, mask=is_row)
    columns = tl.arange(0, BLOCK_DV)
    tl.store(partial_out + entries[:, None] * BLOCK_DV + columns[None, :], values, mask=is_row[:, None])


@triton.jit
def store_result(
    out, lse, out_strides, lse_strides, sequence, first_q, tokens, heads, is_row, width, acc, top, total,
    BLOCK_DV: tl.constexpr, PACKED_Q: tl.constexpr, STORE_LSE: tl.constexpr,
):
    """Rows of the output, by token and head. Strides are (batch, head, token[, width]); packed rows have no batch."""
    values, log2_sum = finished(acc, top, total)
    places = (first_q + tokens).to(tl.int64)
    rows = out + places * out_strides[2] + heads.to(tl.int64) * out_strides[1]
    if not PACKED_Q:
        rows += sequence.to(tl.int64) * out_strides[0]
    columns = tl.arange(0, BLOCK_DV)
    pointers = rows[:, None] + columns.to(tl.int64)[None, :] * out_strides[3]
    tl.store(pointers, values.to(out.dtype.element_ty), mask=is_row[:, None] & (columns < width)[None, :])
    if STORE_LSE:
        cells = lse + places * lse_strides[2] + heads.to(tl.int64) * lse_strides[1]
        if not PACKED_Q:
            cells += sequence.to(tl.int64) * lse_strides[0]
        tl.store(cells, log2_sum * LN2, mask=is_row)
