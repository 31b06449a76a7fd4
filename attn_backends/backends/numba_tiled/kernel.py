"""The kernel, one per padded head width: a block of 8 x 16 threads owns 64 queries of one head and walks over their keys.

    for every tile of 32 keys:
        s    = scale * q k^T, capped; -inf where hidden      each thread 4 queries x 4 keys, in registers
        m'   = max(m, rowmax(s));  p = exp(s - m')           eight threads share a row: each one's maximum meets in memory
        l    = l exp(m - m') + rowsum(p)                     each thread its own keys; added up at the end
        acc  = acc exp(m - m') + p v                         each thread 4 queries x width / 8 columns, in registers
    out = acc / l,   lse = m + ln(l)

Thread (x, y) has the queries y, y + 16, y + 32, y + 48, the keys x, x + 8, x + 16, x + 24 of a tile, and of every 32 columns
those four from 4 x on. What it multiplies it reads four numbers at a time: 8 reads of 16 bytes per 64 products of q k^T, 20
per 256 of p v. K and V take turns in one tile, so a tile costs four barriers. Only keys that some query sees are visited.

Shared memory, float32 whatever is stored: rows of q, of k or v, and of p with eight columns more, for the maxima of eight
threads. A warp is 8 x by 4 y, and a row begins where the banks say:

    q       width + 4 numbers a row     four rows, 4 banks apart, each read by eight threads at once
    k       width + 4                   eight rows, 4 banks apart: all 32 banks
    v       width + 4                   32 neighbouring columns
    p       32 + 8                      read as q, 8 banks apart; written as four rows of eight neighbours: all 32 banks

Runs unchanged in numba's CUDA simulator, which has no warps: threads meet at `syncthreads` alone.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from attn_backends.numba_driver.toolchain import SIMULATED, cuda, types

float32, uint32 = types.float32, types.uint32
at = int if SIMULATED else types.uint64  # an index: numba asks of a signed one whether it counts from the end
ROWS, KEYS = 64, 32  # of a tile
XS, YS = 8, 16  # threads
WARP = 32
WARPS = XS * YS // WARP
EACH_ROW, EACH_KEY = ROWS // YS, KEYS // XS  # of a thread
FOUR = 4  # numbers that are read at a time
WIDTHS = (32, 64, 128)
BLOCKS = {32: 4, 64: 4, 128: 3}  # that a multiprocessor shall hold: bounds the registers of a thread
P_PITCH = KEYS + XS  # from one row of p to the next
# Shapes are constants, not expressions: numba looks for literals.
S_SHAPE, FOURS_SHAPE = (EACH_ROW, EACH_KEY), (EACH_ROW, FOUR)
ALIGNMENT = None if SIMULATED else 4 * FOUR
MINUS_INF = float32(-math.inf)


def shared_bytes(width: int) -> int:
    """Of a block: q, k or v, p."""
    return 4 * ((ROWS + KEYS) * (width + FOUR) + ROWS * P_PITCH)


@cache
def kernel_for(width: int) -> Any:
    """The kernel for heads of at most `width`, one of WIDTHS."""
    pitch = width + FOUR
    fours = width // (XS * FOUR)
    acc_shape = (EACH_ROW, fours, FOUR)
    in_k = ROWS * pitch  # where k begins in shared memory, and v; q begins at 0
    in_p = in_k + KEYS * pitch

    @cuda.jit(device=True, inline="always")
    def bring(shared: Any, begin: Any, rows: Any, source: Any, count: Any) -> None:
        """The first `count` rows of source [tokens, width] to a tile of `rows` rows, and zeros behind them."""
        thread = uint32(cuda.threadIdx.y * XS + cuda.threadIdx.x)  # never negative: // and % are a shift and a mask
        for step in range(rows // WARPS):
            row = thread // WARP + step * WARPS
            for part in range(width // WARP):
                column = thread % WARP + part * WARP
                number = float32(0.0)
                if row < count and column < source.shape[1]:
                    number = float32(source[at(row), at(column)])
                shared[at(begin + row * pitch + column)] = number

    @cuda.jit
    def attention(
        q: Any, k: Any, v: Any, out: Any, lse: Any, starts_q: Any, starts_k: Any, scale: Any, softcap: Any, left: Any,
        right: Any, bottom_right: Any,
    ) -> None:  # fmt: skip
        """Grid: (query tiles, heads, sequences). q, k, v, out [entries, heads, tokens, width], lse [entries, heads, tokens].

        lse: without elements, where nobody asks. starts_q, starts_k: where sequences begin in the one entry of packed
        tensors; one number where every sequence is an entry. scale: of scores, by softcap where there is one. softcap: 0 =
        none; left, right: -1 = unbounded.
        """
        shared = cuda.shared.array(0, float32, ALIGNMENT)
        s = cuda.local.array(S_SHAPE, float32)
        acc = cuda.local.array(acc_shape, float32)
        top = cuda.local.array(EACH_ROW, float32)
        total = cuda.local.array(EACH_ROW, float32)
        one = cuda.local.array(FOURS_SHAPE, float32)
        other = cuda.local.array(FOUR, float32)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        head, sequence = cuda.blockIdx.y, cuda.blockIdx.z
        kv_head = head // (q.shape[1] // k.shape[1])
        entry_q, first_q, seq_q = sequence, 0, q.shape[2]
        entry_k, first_k, seq_k = sequence, 0, k.shape[2]
        if starts_q.shape[0] > 1:
            entry_q, first_q, seq_q = 0, starts_q[sequence], starts_q[sequence + 1] - starts_q[sequence]
        if starts_k.shape[0] > 1:
            entry_k, first_k, seq_k = 0, starts_k[sequence], starts_k[sequence + 1] - starts_k[sequence]
        start = (cuda.gridDim.x - 1 - cuda.blockIdx.x) * ROWS  # those with the most keys first, if causal
        if start >= seq_q:
            return
        count = min(ROWS, seq_q - start)
        first_q += start
        diagonal = start + seq_k - seq_q if bottom_right else start  # the key of the first query
        begin, end = 0, seq_k
        if left >= 0:
            begin = max(0, diagonal - left)
        if right >= 0:
            end = min(seq_k, diagonal + count + right)
        keys, values = k[entry_k, kv_head, first_k:], v[entry_k, kv_head, first_k:]

        bring(shared, 0, ROWS, q[entry_q, head, first_q:], count)
        for i in range(EACH_ROW):
            top[i] = MINUS_INF
            total[i] = float32(0.0)
            for c in range(fours):
                for e in range(FOUR):
                    acc[i, c, e] = float32(0.0)

        for first in range(begin, end, KEYS):
            cuda.syncthreads()  # the last tile's V has been used
            bring(shared, in_k, KEYS, keys[first:], end - first)
            for i in range(EACH_ROW):
                for j in range(EACH_KEY):
                    s[i, j] = float32(0.0)
            cuda.syncthreads()
            for d in range(width // FOUR):
                for i in range(EACH_ROW):
                    for e in range(FOUR):
                        one[i, e] = shared[at((y + i * YS) * pitch + d * FOUR + e)]
                for j in range(EACH_KEY):
                    for e in range(FOUR):
                        other[e] = shared[at(in_k + (x + j * XS) * pitch + d * FOUR + e)]
                    for i in range(EACH_ROW):
                        for e in range(FOUR):
                            s[i, j] += one[i, e] * other[e]
            for i in range(EACH_ROW):
                for j in range(EACH_KEY):
                    s[i, j] *= scale
            if softcap > float32(0.0):
                for i in range(EACH_ROW):
                    for j in range(EACH_KEY):
                        s[i, j] = softcap * math.tanh(s[i, j])
            for i in range(EACH_ROW):
                row = y + i * YS
                low = begin if left < 0 else max(begin, diagonal + row - left)
                high = end if right < 0 else min(end, diagonal + row + right + 1)
                newest = MINUS_INF
                for j in range(EACH_KEY):
                    key = first + x + j * XS
                    if key < low or key >= high:
                        s[i, j] = MINUS_INF
                    newest = max(newest, s[i, j])
                shared[at(in_p + row * P_PITCH + KEYS + x)] = newest
            cuda.syncthreads()  # maxima are there, and K has been used
            bring(shared, in_k, KEYS, values[first:], end - first)
            for i in range(EACH_ROW):
                row = y + i * YS
                newest = top[i]
                for thread in range(XS):
                    newest = max(newest, shared[at(in_p + row * P_PITCH + KEYS + thread)])
                shift = newest if newest > MINUS_INF else float32(0.0)
                fade = math.exp(top[i] - shift)
                top[i] = newest
                total[i] *= fade
                for c in range(fours):
                    for e in range(FOUR):
                        acc[i, c, e] *= fade
                for j in range(EACH_KEY):
                    weight = math.exp(s[i, j] - shift)
                    total[i] += weight
                    shared[at(in_p + row * P_PITCH + x + j * XS)] = weight
            cuda.syncthreads()
            for key in range(KEYS // FOUR):
                for i in range(EACH_ROW):
                    for e in range(FOUR):
                        one[i, e] = shared[at(in_p + (y + i * YS) * P_PITCH + key * FOUR + e)]
                for j in range(FOUR):
                    for c in range(fours):
                        for e in range(FOUR):
                            other[e] = shared[at(in_k + (key * FOUR + j) * pitch + (c * XS + x) * FOUR + e)]
                        for i in range(EACH_ROW):
                            for e in range(FOUR):
                                acc[i, c, e] += one[i, j] * other[e]

        cuda.syncthreads()
        for i in range(EACH_ROW):
            shared[at(in_p + (y + i * YS) * P_PITCH + KEYS + x)] = total[i]
        cuda.syncthreads()
        for i in range(EACH_ROW):
            row = y + i * YS
            if row < count:
                weights = float32(0.0)
                for thread in range(XS):
                    weights += shared[at(in_p + row * P_PITCH + KEYS + thread)]
                share = float32(1.0) / weights if weights > float32(0.0) else float32(0.0)
                for c in range(fours):
                    for e in range(FOUR):
                        column = (c * XS + x) * FOUR + e
                        if column < out.shape[3]:
                            out[entry_q, head, first_q + row, column] = acc[i, c, e] * share
                if x == 0 and lse.shape[2] > 0:
                    lse[entry_q, head, first_q + row] = (
                        top[i] + math.log(weights) if weights > float32(0.0) else MINUS_INF
                    )

    return attention
