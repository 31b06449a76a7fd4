"""Which tiles a program visits: from the band around the diagonal to three stretches of a loop.

    begin .. whole        tiles that the band's near edge cuts
    whole .. cut          tiles that every row of the program's own tile sees: no mask is computed there
    cut .. end            tiles that the far edge or the sequence's end cuts

What lies outside begin .. end is not visited. An empty stretch is a loop of no steps.
"""

import triton
import triton.language as tl


@triton.jit
def key_stretches(
    start_q, seq_q, seq_k, offset, left, right,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
):
    """(begin, whole, cut, end) over keys, for the queries start_q .. start_q + BLOCK_M.

    `begin` is the first visible key itself, not a tile's border, so no tile begins with keys that nobody sees.
    """
    last_query = tl.minimum(start_q + BLOCK_M, seq_q) - 1
    begin = 0
    end = seq_k
    whole_begin = 0
    whole_end = seq_k
    if LEFT:
        begin = tl.maximum(start_q + offset - left, 0)
        whole_begin = tl.maximum(last_query + offset - left, 0)
    if RIGHT:
        end = tl.minimum(last_query + offset + right + 1, seq_k)
        whole_end = tl.minimum(start_q + offset + right + 1, seq_k)
    end = tl.maximum(end, begin)
    cut_left = tl.cdiv(tl.minimum(tl.maximum(whole_begin, begin), end) - begin, BLOCK_N)
    whole = tl.minimum(begin + cut_left * BLOCK_N, end)
    return begin, whole, whole + tl.maximum(whole_end - whole, 0) // BLOCK_N * BLOCK_N, end


@triton.jit
def query_stretches(
    start_k, seq_q, seq_k, offset, left, right,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
):
    """(begin, whole, cut, end) over queries, for the keys start_k .. start_k + BLOCK_N.

    Queries behind the sequence, which a product would sum up, are in the last stretch only.
    """
    last_key = tl.minimum(start_k + BLOCK_N, seq_k) - 1
    begin = 0
    end = seq_q
    whole_begin = 0
    whole_end = seq_q
    if RIGHT:
        begin = tl.maximum(start_k - offset - right, 0) // BLOCK_M * BLOCK_M
        whole_begin = tl.maximum(last_key - offset - right, 0)
    if LEFT:
        end = tl.minimum(last_key - offset + left + 1, seq_q)
        whole_end = tl.minimum(start_k - offset + left + 1, seq_q)
    end = tl.maximum(end, begin)
    cut_left = tl.cdiv(tl.minimum(tl.maximum(whole_begin, begin), end) - begin, BLOCK_M)
    filled = tl.maximum(seq_q // BLOCK_M * BLOCK_M, begin)
    whole = tl.minimum(begin + cut_left * BLOCK_M, filled)
    return begin, whole, whole + tl.maximum(whole_end - whole, 0) // BLOCK_M * BLOCK_M, end


PROGRAMS_IN_TURN: tl.constexpr = tl.constexpr(512)


@triton.jit
def heads_in_turn(program, tiles, units):
    """(tile, unit) of a program, a unit being a head of a sequence: tiles of some units side by side, then those of the next.

    Tile 0 of a band takes longest. If it were the first of every unit alone, the last unit's would begin when the others
    are nearly done, and end long after them; if all units' came first, their tensors would not fit the L2 cache together.
    """
    together = tl.minimum((tiles + PROGRAMS_IN_TURN - 1) // tiles, units)
    first = program // (together * tiles) * together
    together = tl.minimum(together, units - first)
    place = program - first * tiles
    return place // together, first + place % together
