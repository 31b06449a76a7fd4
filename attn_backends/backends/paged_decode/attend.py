"""The main kernel: a program finds its item, a split of the keys for one tile of query rows, and walks over it.

    plan   lengths of the whole batch -> this program's sequence, tile and split        schedule.py
    walk   the tile's rows over the split's keys                                        walk.py

In a packed batch a sequence of few rows, a decode among prompts, walks with a tile of FEW rows: the same keys cost a fraction
of the arithmetic, which the prompts have use for.
"""

import triton
import triton.language as tl

from attn_backends.backends.paged_decode.result import forget_tiles, store_facts
from attn_backends.backends.paged_decode.schedule import FEW, find_item, lengths_of, splits_of, steps_of
from attn_backends.backends.paged_decode.walk import attend_rows

# Numbers that change from call to call: one compiled kernel serves all of them.
_UNSPECIALIZED = (
    "batch", "kv_heads", "group", "longest_q", "longest_k", "num_pages", "scale", "softcap", "left", "right", "reach", "slots",
    "most_items", "units",
)  # fmt: skip


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def attend_split(
    q, k, v, out, lse, partial_out, partial_lse, facts, table, starts_q, lengths_k, k_descale, v_descale, sinks, slopes,
    q_strides, k_strides, v_strides, out_strides, lse_strides, table_strides, k_scale_strides, v_scale_strides, slope_strides,
    batch, kv_heads, group, longest_q, longest_k, head_dim, head_dim_v, num_pages,
    scale, softcap, left, right, reach, slots, most_items, units,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_DV: tl.constexpr,
    BATCH_BLOCK: tl.constexpr, V_IN_K: tl.constexpr,
    PAGE_SIZE: tl.constexpr, INDEX: tl.constexpr, ROWS_ALIKE: tl.constexpr, PADDED_D: tl.constexpr, PADDED_DV: tl.constexpr, PACKED_Q: tl.constexpr,
    QK_TYPE: tl.constexpr, PV_TYPE: tl.constexpr, PRECISION: tl.constexpr, POSITIVE: tl.constexpr, NORMALISE_Q: tl.constexpr, HEADROOM: tl.constexpr,
    K_SCALE: tl.constexpr, V_SCALE: tl.constexpr, V_PAIRS: tl.constexpr, FEW_PAIRS: tl.constexpr,
    HARDWARE: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, BOTTOM_RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr,
    SINKS: tl.constexpr, INVARIANT: tl.constexpr, STORE_LSE: tl.constexpr, EARLY: tl.constexpr,
    MERGE_ROWS: tl.constexpr, MERGE_SPLITS: tl.constexpr, IN_REGISTERS: tl.constexpr,
):
    """Grid: items times KV heads, one-dimensional, the heads of an item next to each other.

    units: query tiles that there could be; what `combine` has programs for.
    BLOCK_R, V_IN_K, V_PAIRS: as in `attend_rows`.
    FEW_PAIRS: V_PAIRS of tiles of FEW rows, which may read as pairs what the others take as it is.
    EARLY: the next kernel may be launched while this one runs; it waits for the results by itself.
    MERGE_ROWS, MERGE_SPLITS, IN_REGISTERS: as in `attend_rows`; where MERGE_ROWS is not 0, `facts` are counters.
    """
    place = tl.program_id(0)
    kv_head = place % kv_heads
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    item, sequence, before, tiles_before, per_split = find_item(
        place // kv_heads, starts_q, lengths_k, batch, group, longest_q, longest_k, reach, kv_heads, slots, most_items,
        BLOCK_M, BLOCK_N, BATCH_BLOCK, PACKED_Q, LEFT, RIGHT, BOTTOM_RIGHT, INVARIANT,
    )
    if sequence >= batch:
        if PACKED_Q and MERGE_ROWS == 0 and place == tl.num_programs(0) - 1:  # it never has an item
            forget_tiles(facts, tiles_before, units)
        return
    seq_q, seq_k = lengths_of(sequence, True, starts_q, lengths_k, longest_q, longest_k, PACKED_Q)
    tiles = tl.cdiv(seq_q * group, BLOCK_M)
    steps = steps_of(seq_q, seq_k, reach, BLOCK_N, LEFT, RIGHT, BOTTOM_RIGHT)
    splits = splits_of(steps, per_split, INVARIANT)
    tile = (item - before) % tiles
    split = (item - before) // tiles
    unit = tiles_before + tile
    if MERGE_ROWS == 0 and kv_head == 0 and split == 0:
        store_facts(facts, unit, before + tile, sequence, tile, splits)

    if PACKED_Q and BLOCK_M > FEW:
        if seq_q * group <= FEW:
            few_v, few_strides, few_width = v, v_strides, head_dim_v
            if FEW_PAIRS != V_PAIRS:
                few_v = v.to(tl.pointer_type(tl.uint16), bitcast=True)
                few_strides = (v_strides[0] // 2, v_strides[1] // 2, v_strides[2] // 2, 1)
                few_width = head_dim_v // 2
            attend_rows(
                q, k, few_v, out, lse, partial_out, partial_lse, facts, table, starts_q, k_descale, v_descale, sinks, slopes,
                q_strides, k_strides, few_strides, out_strides, lse_strides, table_strides, k_scale_strides, v_scale_strides,
                slope_strides, item, before, unit, kv_heads, sequence, kv_head, tile, tiles, split, splits, steps, seq_q, seq_k, group, head_dim,
                few_width, num_pages, scale, softcap, left, right,
                FEW, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_R, BLOCK_DV, V_IN_K, PAGE_SIZE, INDEX, ROWS_ALIKE, PADDED_D, PADDED_DV, PACKED_Q, QK_TYPE, PV_TYPE,
                PRECISION, POSITIVE, NORMALISE_Q, HEADROOM, K_SCALE, V_SCALE, FEW_PAIRS, HARDWARE, LEFT, RIGHT, BOTTOM_RIGHT, SOFTCAP, ALIBI, SINKS,
                STORE_LSE, MERGE_ROWS, MERGE_SPLITS, IN_REGISTERS,
            )
        else:
            attend_rows(
                q, k, v, out, lse, partial_out, partial_lse, facts, table, starts_q, k_descale, v_descale, sinks, slopes,
                q_strides, k_strides, v_strides, out_strides, lse_strides, table_strides, k_scale_strides, v_scale_strides,
                slope_strides, item, before, unit, kv_heads, sequence, kv_head, tile, tiles, split, splits, steps, seq_q, seq_k, group, head_dim,
                head_dim_v, num_pages, scale, softcap, left, right,
                BLOCK_M, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_R, BLOCK_DV, V_IN_K, PAGE_SIZE, INDEX, ROWS_ALIKE, PADDED_D, PADDED_DV, PACKED_Q, QK_TYPE, PV_TYPE,
                PRECISION, POSITIVE, NORMALISE_Q, HEADROOM, K_SCALE, V_SCALE, V_PAIRS, HARDWARE, LEFT, RIGHT, BOTTOM_RIGHT, SOFTCAP, ALIBI, SINKS,
                STORE_LSE, MERGE_ROWS, MERGE_SPLITS, IN_REGISTERS,
            )
    else:
        attend_rows(
            q, k, v, out, lse, partial_out, partial_lse, facts, table, starts_q, k_descale, v_descale, sinks, slopes,
            q_strides, k_strides, v_strides, out_strides, lse_strides, table_strides, k_scale_strides, v_scale_strides,
            slope_strides, item, before, unit, kv_heads, sequence, kv_head, tile, tiles, split, splits, steps, seq_q, seq_k, group, head_dim,
            head_dim_v, num_pages, scale, softcap, left, right,
            BLOCK_M, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_R, BLOCK_DV, V_IN_K, PAGE_SIZE, INDEX, ROWS_ALIKE, PADDED_D, PADDED_DV, PACKED_Q, QK_TYPE, PV_TYPE,
            PRECISION, POSITIVE, NORMALISE_Q, HEADROOM, K_SCALE, V_SCALE, V_PAIRS, HARDWARE, LEFT, RIGHT, BOTTOM_RIGHT, SOFTCAP, ALIBI, SINKS,
            STORE_LSE, MERGE_ROWS, MERGE_SPLITS, IN_REGISTERS,
        )
