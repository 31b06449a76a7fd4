"""Which tiles of keys a program visits; all begin at multiples of their size, so that each has one scale.

    begin .. whole        tiles that the window's left edge cuts
    whole .. cut          tiles that every row of the program's own tile sees: no mask is computed there
    cut .. end            tiles that the diagonal, or the sequence's end, cuts

An empty stretch is a loop of no steps.
"""

import triton
import triton.language as tl


@triton.jit
def key_stretches(
    start_q, seq_q, seq_k, offset, left, right,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
):
    """(begin, whole, cut, end) over keys, for the queries start_q .. start_q + BLOCK_M."""
    last_query = tl.minimum(start_q + BLOCK_M, seq_q) - 1
    begin = 0
    whole = 0
    end = seq_k
    whole_end = seq_k
    if LEFT:
        begin = tl.maximum(start_q + offset - left, 0) // BLOCK_N * BLOCK_N
        whole = tl.cdiv(tl.maximum(last_query + offset - left, 0), BLOCK_N) * BLOCK_N
    if RIGHT:
        end = tl.minimum(last_query + offset + right + 1, seq_k)
        whole_end = tl.minimum(start_q + offset + right + 1, seq_k)
    end = tl.maximum(end, begin)
    whole = tl.minimum(whole, tl.cdiv(end, BLOCK_N) * BLOCK_N)
    cut = tl.maximum(tl.maximum(whole_end, 0) // BLOCK_N * BLOCK_N, whole)
    return begin, whole, cut, end


@triton.jit
def visible_tile(queries, keys, seq_k, offset, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """bool: inside the sequence and inside the band around the diagonal."""
    visible = keys < seq_k
    if RIGHT:
        visible = visible & (keys <= queries + (offset + right))
    if LEFT:
        visible = visible & (keys >= queries + (offset - left))
    return visible
