"""The kernel behind `gather_kv`: one program brings some tokens of one head of K or V out of their pages.

    out[start of sequence + token] = cast(stored[page, cell] * descale)

A page number outside the pool is moved into it, so that no table makes the kernel read elsewhere.
"""

import triton
import triton.language as tl


@triton.jit
def gather_head(
    cache,
    out,
    descale,
    cache_strides,
    out_strides,
    scale_strides,
    sequence,
    pages,
    cells,
    places,
    inside,
    head,
    width,
    BLOCK_D: tl.constexpr,
    SCALE: tl.constexpr,
):
    """A tile [tokens, BLOCK_D] of one tensor. Strides are (page, cell, head, width) and (token, head, width).

    SCALE: none, head, channel or token
    """
    columns = tl.arange(0, BLOCK_D).to(tl.int64)
    filled = inside[:, None] & (columns < width)[None, :]
    corner = cache + pages * cache_strides[0] + cells * cache_strides[1] + head * cache_strides[2]
    values = tl.load(corner[:, None] + columns[None, :] * cache_strides[3], mask=filled, other=0.0)
    if SCALE != "none":
        values = values.to(tl.float32)
        if SCALE == "head":
            values *= tl.load(descale + sequence * scale_strides[0] + head * scale_strides[1])
        elif SCALE == "channel":
            given = descale + head * scale_strides[0] + columns * scale_strides[1]
            values *= tl.load(given, mask=columns < width, other=1.0)[None, :]
        else:
            given = descale + pages * scale_strides[0] + cells * scale_strides[1] + head * scale_strides[2]
            values *= tl.load(given, mask=inside, other=1.0)[:, None]
    target = out + places * out_strides[0] + head * out_strides[1]
    tl.store(target[:, None] + columns[None, :] * out_strides[2], values.to(out.dtype.element_ty), mask=filled)


@triton.jit(do_not_specialize=("page_size", "num_pages", "heads"))
def gather_tokens(
    k_cache,
    v_cache,
    k,
    v,
    k_descale,
    v_descale,
    table,
    starts,
    k_cache_strides,
    v_cache_strides,
    k_strides,
    v_strides,
    k_scale_strides,
    v_scale_strides,
    table_strides,
    page_size,
    num_pages,
    heads,
    width,
    width_v,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    K_SCALE: tl.constexpr,
    V_SCALE: tl.constexpr,
):
    """Grid: (blocks of tokens of the longest sequence, KV heads of K and then of V, sequences)."""
    sequence = tl.program_id(2).to(tl.int64)
    start = tl.load(starts + sequence)
    length = tl.load(starts + sequence + 1) - start
    if tl.program_id(0) * BLOCK_T >= length:
        return
    tokens = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    inside = tokens < length
    columns = (tokens // page_size).to(tl.int64)
    pages = tl.load(table + sequence * table_strides[0] + columns * table_strides[1], mask=inside, other=0)
    pages = tl.minimum(tl.maximum(pages, 0), num_pages - 1).to(tl.int64)
    cells = (tokens % page_size).to(tl.int64)
    places = (start + tokens).to(tl.int64)
    head = tl.program_id(1)
    if head < heads:
        gather_head(
            k_cache,
            k,
            k_descale,
            k_cache_strides,
            k_strides,
            k_scale_strides,
            sequence,
            pages,
            cells,
            places,
            inside,
            head.to(tl.int64),
            width,
            BLOCK_D,
            K_SCALE,
        )
    else:
        gather_head(
            v_cache,
            v,
            v_descale,
            v_cache_strides,
            v_strides,
            v_scale_strides,
            sequence,
            pages,
            cells,
            places,
            inside,
            (head - heads).to(tl.int64),
            width_v,
            BLOCK_DV,
            V_SCALE,
        )
