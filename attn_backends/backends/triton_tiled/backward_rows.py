"""What the backward needs of every row, once: delta = rowsum(dO * O) - d lse, norm = lse / ln 2, and the sink's gradient.

With p = exp(s - lse) and o = sum_j p_j v_j (dropout included in both):
    ds_j   = p_j (dO . v_j - sum_i p_i dO . v_i) + p_j d lse = p_j (dO . v_j - delta)
    d sink = -sum over rows of exp(sink - lse) delta                the sink is one more score, with no value
"""

import triton
import triton.language as tl

from attn_backends.backends.triton_tiled.scores import LOG2E, MINUS_INF
from attn_backends.backends.triton_tiled.specialization import LENGTHS_AND_COUNTS, READ_ONE_BY_ONE, family
from attn_backends.backends.triton_tiled.tile import (
    first_row,
    queries_of,
    row_steps,
    row_values,
    store_rows,
    tile_pointers,
    tile_steps,
)


@triton.jit(do_not_specialize=LENGTHS_AND_COUNTS, do_not_specialize_on_alignment=READ_ONE_BY_ONE)
def row_terms(
    out, d_out, lse, d_lse, delta, norms, sinks, sink_parts, starts_q,
    out_strides, d_out_strides, lse_strides, d_lse_strides, delta_strides,
    num_q_heads, longest_q, head_dim_v, present, has_d_lse,
    BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr, PACKED_Q: tl.constexpr, SINKS: tl.constexpr,
    D_LSE: tl.constexpr, WIDE: tl.constexpr, PORTABLE: tl.constexpr,
):
    """Grid: (tiles, heads, sequences). Writes delta and norms [.., head, token] and a part of d sink per program.

    delta_strides: of both. norms: in log2 units, as scores are counted; 0 for a row that saw nothing, whose scores are all -inf.
    """
    if PORTABLE:
        out_strides = tile_steps(out_strides, False)
        d_out_strides = tile_steps(d_out_strides, False)
        lse_strides = row_steps(lse_strides)
        d_lse_strides = row_steps(d_lse_strides)
        delta_strides = row_steps(delta_strides)
    tile = tl.program_id(0)
    head = tl.program_id(1)
    batch = tl.program_id(2)
    first, seq_q = queries_of(batch, starts_q, longest_q, present, PACKED_Q, PORTABLE)
    start = tile * BLOCK_M
    rows = start + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_DV)
    valid = rows < seq_q
    inside = valid[:, None] & (columns < head_dim_v)[None, :]
    o = tl.load(
        tile_pointers(first_row(out, out_strides, batch, head, first, PACKED_Q), out_strides, start, BLOCK_M, BLOCK_DV, WIDE),
        mask=inside, other=0.0,
    ).to(tl.float32)
    d_o = tl.load(
        tile_pointers(
            first_row(d_out, d_out_strides, batch, head, first, PACKED_Q), d_out_strides, start, BLOCK_M, BLOCK_DV, WIDE
        ),
        mask=inside, other=0.0,
    ).to(tl.float32)
    row = tl.sum(o * d_o, 1)
    if D_LSE:
        known = tl.where(has_d_lse != 0, seq_q, 0) if PORTABLE else seq_q
        row -= row_values(d_lse, d_lse_strides, batch, head, first, rows, known, PACKED_Q)
    store_rows(delta, delta_strides, batch, head, first, rows, seq_q, row, PACKED_Q)
    norm = row_values(lse, lse_strides, batch, head, first, rows, seq_q, PACKED_Q) * LOG2E
    store_rows(
        norms, delta_strides, batch, head, first, rows, seq_q, tl.where(norm == MINUS_INF, 0.0, norm), PACKED_Q
    )
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * LOG2E
        weight = tl.where(valid & (norm > MINUS_INF), tl.exp2(sink - norm), 0.0)
        part = tl.sum(tl.where(weight > 0.0, weight * row, 0.0), 0)
        tl.store(sink_parts + (batch * num_q_heads + head) * tl.num_programs(0) + tile, -part)


ROWS = family(row_terms)
