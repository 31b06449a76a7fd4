"""The kernel behind `cascade_attention`'s merge: some rows of two states that saw disjoint keys become one.

    m = max(lse_a, lse_b),   w = exp(lse - m),   out = (w_a out_a + w_b out_b) / (w_a + w_b),   lse = m + ln(w_a + w_b)

A state that saw nothing has an LSE of -inf, hence weight 0, whatever its `out` holds: then the other one is the result.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=("rows", "tokens", "heads"))
def merge_rows(
    out_a,
    lse_a,
    out_b,
    lse_b,
    out,
    lse,
    out_a_strides,
    lse_a_strides,
    out_b_strides,
    lse_b_strides,
    out_strides,
    lse_strides,
    rows,
    tokens,
    heads,
    width,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Grid: (blocks of rows). A row is a sequence's token and head; strides are (batch, token, head[, width])."""
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.arange(0, BLOCK_D).to(tl.int64)
    is_row = row < rows
    head = (row % heads).to(tl.int64)
    token = (row // heads % tokens).to(tl.int64)
    sequence = (row // heads // tokens).to(tl.int64)
    inside = is_row[:, None] & (columns < width)[None, :]

    log_a = tl.load(
        lse_a + sequence * lse_a_strides[0] + token * lse_a_strides[1] + head * lse_a_strides[2], mask=is_row, other=0.0
    )
    log_b = tl.load(
        lse_b + sequence * lse_b_strides[0] + token * lse_b_strides[1] + head * lse_b_strides[2], mask=is_row, other=0.0
    )
    corner_a = out_a + sequence * out_a_strides[0] + token * out_a_strides[1] + head * out_a_strides[2]
    corner_b = out_b + sequence * out_b_strides[0] + token * out_b_strides[1] + head * out_b_strides[2]
    seen_a, seen_b = log_a != float("-inf"), log_b != float("-inf")
    value_a = tl.load(
        corner_a[:, None] + columns[None, :] * out_a_strides[3], mask=inside & seen_a[:, None], other=0.0
    ).to(tl.float32)
    value_b = tl.load(
        corner_b[:, None] + columns[None, :] * out_b_strides[3], mask=inside & seen_b[:, None], other=0.0
    ).to(tl.float32)

    top = tl.maximum(log_a, log_b)
    seen = seen_a | seen_b
    shift = tl.where(seen, top, 0.0)
    weight_a, weight_b = tl.exp(log_a - shift), tl.exp(log_b - shift)
    total = tl.where(seen, weight_a + weight_b, 1.0)
    merged = (weight_a / total)[:, None] * value_a + (weight_b / total)[:, None] * value_b
    corner = out + sequence * out_strides[0] + token * out_strides[1] + head * out_strides[2]
    tl.store(corner[:, None] + columns[None, :] * out_strides[3], merged.to(out.dtype.element_ty), mask=inside)
    place = lse + sequence * lse_strides[0] + token * lse_strides[1] + head * lse_strides[2]
    tl.store(place, tl.where(seen, shift + tl.log(total), float("-inf")), mask=is_row)
