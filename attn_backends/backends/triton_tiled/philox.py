"""Dropout that depends on the entry alone: Philox4x32-10, counter (key, query, head, batch), key = the seed's two words.

Forward and backward recompute the same decision for the same entry, whatever the tile they see it in.
"""

import triton
import triton.language as tl


@triton.jit
def kept(seed, threshold, queries, keys, head, batch, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """bool [ROWS, COLUMNS]: which weights dropout keeps; threshold = ceil(p * 2^32)."""
    zero = tl.zeros([ROWS, COLUMNS], dtype=tl.uint32)
    counter_key = zero + keys.to(tl.uint32)
    counter_query = zero + queries.to(tl.uint32)
    first, _second, _third, _fourth = tl.philox(
        seed, counter_key, counter_query, zero + head.to(tl.uint32), zero + batch.to(tl.uint32)
    )
    return first.to(tl.uint64) >= tl.cast(threshold, tl.uint64)
