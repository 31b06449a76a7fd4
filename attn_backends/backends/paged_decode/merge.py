"""Putting rows together from the splits of their keys.

    m = max_i lse_i,   w_i = 2^(lse_i - m),   out = sum_i w_i out_i / (sum_i w_i + 2^(sink - m))

The sink enters here, once. A split that saw nothing has an LSE of -inf, hence weight 0. Splits are read in their order, whoever
came when.

`combine.py` is a kernel that does it. Where tiles have few rows, the last program of a tile to end does it instead, and there
is no second kernel: each split counts itself once its partial results are written, and the one that counts last sets the counter
back to 0, for the next launch.
"""

import triton
import triton.language as tl

from attn_backends.backends.paged_decode.result import store_result
from attn_backends.backends.paged_decode.scores import LOG2E, MINUS_INF


@triton.jit
def merge_when_last(
    partial_out, partial_lse, counter, out, lse, sinks, out_strides, lse_strides,
    item, tiles, splits, kv_heads, kv_head, sequence, first_q, first_row, seq_q, group, width,
    ROOM_M: tl.constexpr, BLOCK_DV: tl.constexpr, ROWS: tl.constexpr, AT_A_TIME: tl.constexpr,
    PACKED_Q: tl.constexpr, SINKS: tl.constexpr, STORE_LSE: tl.constexpr,
):
    """Count this split of `splits`; if it is the last one, write the tile, of at most ROWS rows. Others as in `merge_splits`."""
    tl.debug_barrier()  # every thread's part of the results is written before one of them counts
    if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == splits - 1:
        tl.store(counter, 0)
        merge_splits(
            partial_out, partial_lse, out, lse, sinks, out_strides, lse_strides,
            item, tiles, splits, kv_heads, kv_head, sequence, first_q, first_row, 0, seq_q, group, width,
            ROOM_M, BLOCK_DV, ROWS, AT_A_TIME, PACKED_Q, SINKS, STORE_LSE,
        )


@triton.jit
def merge_splits(
    partial_out, partial_lse, out, lse, sinks, out_strides, lse_strides,
    item, tiles, splits, kv_heads, kv_head, sequence, first_q, first_row, within, seq_q, group, width,
    ROOM_M: tl.constexpr, BLOCK_DV: tl.constexpr, ROWS: tl.constexpr, AT_A_TIME: tl.constexpr,
    PACKED_Q: tl.constexpr, SINKS: tl.constexpr, STORE_LSE: tl.constexpr,
):
    """ROWS rows of the output from the partial results of all splits, AT_A_TIME of them in registers.

    item: of the tile's first split; the others are `tiles` apart
    first_row, within: of the tile in the sequence, and of these rows in the tile
    They come from the L2 cache: other multiprocessors wrote them.
    """
    places = within + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_DV)
    rows = first_row + places
    is_row = (rows < seq_q * group) & (places < ROOM_M)
    heads = kv_head * group + rows % group
    top = tl.full([ROWS], MINUS_INF, dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    if SINKS:
        top = tl.load(sinks + heads, mask=is_row, other=MINUS_INF) * LOG2E
        total = tl.where(top == MINUS_INF, 0.0, 1.0)
    acc = tl.zeros([ROWS, BLOCK_DV], dtype=tl.float32)
    for first in range(0, splits, AT_A_TIME):
        parts = ()
        values = ()
        top_new = top
        for place in tl.static_range(AT_A_TIME):  # a split a register each: sums over splits cross no warp
            split = first + place
            program = ((item + split * tiles) * kv_heads + kv_head).to(tl.int64)
            known = is_row & (split < splits)
            part = tl.load(partial_lse + program * ROOM_M + places, mask=known, other=MINUS_INF, cache_modifier=".cg")
            entries = (program * ROOM_M + places)[:, None] * BLOCK_DV + columns[None, :]
            value = tl.load(partial_out + entries, mask=known[:, None], other=0.0, cache_modifier=".cg")
            values = values + (value,)  # type: ignore[assignment]  # noqa: RUF005  # Triton takes no starred item
            parts = parts + (part,)  # type: ignore[assignment]  # noqa: RUF005  # as above
            top_new = tl.maximum(top_new, part)
        shift = tl.where(top_new == MINUS_INF, 0.0, top_new)
        fade = tl.exp2(top - shift)
        total = total * fade
        acc = acc * fade[:, None]
        for place in tl.static_range(AT_A_TIME):
            weight = tl.exp2(parts[place] - shift)
            total += weight
            acc += weight[:, None] * values[place]
        top = top_new
    store_result(
        out, lse, out_strides, lse_strides, sequence, first_q, rows // group, heads, is_row, width, acc, top, total,
        BLOCK_DV, PACKED_Q, STORE_LSE,
    )
