"""Reading a paged cache: page numbers from the block table, then tiles of K or V by page and cell.

Key position p of a sequence lies in page block_table[sequence, p // PAGE_SIZE], cell p % PAGE_SIZE. Strides of a cache are
(page, cell, head, width) in elements, whatever its layout. A page number is multiplied in 64 bits, or in 32 where these hold
all of the cache. One outside the pool is moved into it, so that no table makes a kernel read outside the cache. Tiles begin
at multiples of their length; so with pages that divide it, the cells of a tile are the same ones in every tile.
"""

import triton
import triton.language as tl


@triton.jit
def in_pool(pages, num_pages):
    """The pages, and the last one for a number that is none: taken without its sign, a negative one is too large."""
    last = tl.cast(num_pages - 1, tl.uint32)
    return tl.minimum(pages.to(tl.uint32, bitcast=True), last).to(tl.int32, bitcast=True)


@triton.jit
def page_numbers(table_row, step, start, lanes, last, num_pages, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """int32, one per key of the tile at `start`; one for all where a page holds the tile. Not read from key `last` on."""
    if PAGE_SIZE % BLOCK_N == 0:
        pages = tl.load(table_row + tl.cast(start // PAGE_SIZE, tl.int64) * step, mask=start < last, other=0)
    else:
        keys = start + lanes
        pages = tl.load(table_row + (keys // PAGE_SIZE).to(tl.int64) * step, mask=keys < last, other=0)
    return in_pool(pages, num_pages)


@triton.jit
def rows_in_cache(
    pages, start, lanes, page_step, cell_step, INDEX: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Offsets [BLOCK_N] of the keys of the tile at `start`; INDEX: an integer wide enough for all of the cache."""
    if BLOCK_N % PAGE_SIZE == 0:
        cells = lanes % PAGE_SIZE
    else:
        cells = (start + lanes) % PAGE_SIZE
    return pages.to(INDEX) * tl.cast(page_step, INDEX) + cells.to(INDEX) * tl.cast(cell_step, INDEX)


@triton.jit
def rows_of_v(
    k_rows, pages, start, lanes, strides, ALIKE: tl.constexpr, INDEX: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """`rows_in_cache` of V; those of K where both caches step ALIKE from page to page and cell to cell."""
    if ALIKE:
        return k_rows
    return rows_in_cache(pages, start, lanes, strides[0], strides[1], INDEX, PAGE_SIZE, BLOCK_N)


@triton.jit
def load_tile(
    cache, strides, rows, inside, head, width, WIDTH: tl.constexpr, PADDED: tl.constexpr, CHECKED: tl.constexpr,
    POLICY: tl.constexpr,
):
    """[keys, WIDTH] of one head; columns from `width` on are 0 and, where CHECKED, keys that are not `inside`.

    POLICY: of the L2 cache. Asynchronous copies, which Triton makes of loads that it fetches ahead, have none.
    """
    columns = tl.arange(0, WIDTH)
    corner = cache + tl.cast(head, tl.int64) * strides[2] + columns.to(tl.int64) * strides[3]
    pointers = corner[None, :] + rows[:, None]
    if CHECKED and PADDED:
        return tl.load(pointers, mask=inside[:, None] & (columns < width)[None, :], other=0.0, eviction_policy=POLICY)
    if CHECKED:
        return tl.load(pointers, mask=inside[:, None], other=0.0, eviction_policy=POLICY)
    if PADDED:
        return tl.load(pointers, mask=(columns < width)[None, :], other=0.0, eviction_policy=POLICY)
    return tl.load(pointers, eviction_policy=POLICY)


@triton.jit
def token_scales(
    descale, strides, pages, start, lanes, inside, head, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr
):
    """One descale per key of a head, float32; 0 for keys that are not `inside`. Strides are (page, cell, head)."""
    rows = rows_in_cache(pages, start, lanes, strides[0], strides[1], tl.int64, PAGE_SIZE, BLOCK_N)
    return tl.load(descale + tl.cast(head, tl.int64) * strides[2] + rows, mask=inside, other=0.0)


@triton.jit
def token_scale(descale, strides, table_row, step, key, last, head, num_pages, PAGE_SIZE: tl.constexpr):
    """The descale of one key of a head; 0 for one from `last` on."""
    page = tl.load(table_row + tl.cast(key // PAGE_SIZE, tl.int64) * step, mask=key < last, other=0)
    page = in_pool(page, num_pages)
    row = page.to(tl.int64) * strides[0] + tl.cast(key % PAGE_SIZE, tl.int64) * strides[1]
    return tl.load(descale + tl.cast(head, tl.int64) * strides[2] + row, mask=key < last, other=0.0)


@triton.jit
def channel_scales(descale, strides, head, width, WIDTH: tl.constexpr):
    """One descale per column of a head, float32 [WIDTH]. Strides are (0, head, column)."""
    columns = tl.arange(0, WIDTH)
    return tl.load(descale + head * strides[1] + columns * strides[2], mask=columns < width, other=0.0)
