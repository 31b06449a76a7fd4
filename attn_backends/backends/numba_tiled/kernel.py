"""The kernel, one per padded head width: a block of 8 x 8 threads owns 32 queries of one head and walks over their keys.

    for every tile of 32 keys:
        s    = scale * q k^T, capped; -inf where hidden      each thread 4 x 4 scores
        m'   = max(m, rowmax(s));  p = exp(s - m')           each of 32 threads one row
        l    = l exp(m - m') + rowsum(p)
        acc  = acc exp(m - m') + p v                         each thread 4 rows x width / 8 columns
    out = acc / l,   lse = m + ln(l)

Thread (x, y) has the queries y, y + 8, y + 16, y + 24, and as many keys and columns by x. q, k, v and p meet in shared memory,
float32 whatever is stored; K and V take turns in one tile. Rows have one column of padding, so that a warp's reads fall
into different banks. Only keys that some query of the block sees are visited.

Runs unchanged in numba's CUDA simulator, which has no warps: threads meet at `syncthreads` alone.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from attn_backends.backends.numba_tiled.toolchain import cuda, float32

ROWS = 32  # queries, and keys, of a tile
SIDE = 8  # threads along x and along y
EACH = ROWS // SIDE  # queries, and keys, per thread
THREADS = SIDE * SIDE
WIDTHS = (32, 64, 128)
P_SHAPE, S_SHAPE = (ROWS, ROWS + 1), (EACH, EACH)  # shapes are constants, not expressions: numba looks for literals
MINUS_INF = float32(-math.inf)


@cache
def kernel_for(width: int) -> Any:
    """The kernel for heads of at most `width`, one of WIDTHS."""
    columns = width // SIDE
    tile_shape = (ROWS, width + 1)
    acc_shape = (EACH, columns)

    @cuda.jit
    def attention(
        q: Any, k: Any, v: Any, out: Any, lse: Any, starts_q: Any, starts_k: Any, scale: Any, softcap: Any, left: Any,
        right: Any, bottom_right: Any,
    ) -> None:  # fmt: skip
        """Grid: (query tiles, heads, sequences). q, k, v, out [entries, heads, tokens, width], lse [entries, heads, tokens].

        starts_q, starts_k: where sequences begin in the one entry of packed tensors; one number where every sequence is
        an entry. softcap: 0 = none; left, right: -1 = unbounded.
        """
        q_tile = cuda.shared.array(tile_shape, float32)
        k_tile = cuda.shared.array(tile_shape, float32)
        p_tile = cuda.shared.array(P_SHAPE, float32)
        top = cuda.shared.array(ROWS, float32)
        total = cuda.shared.array(ROWS, float32)
        fade = cuda.shared.array(ROWS, float32)
        acc = cuda.local.array(acc_shape, float32)
        s = cuda.local.array(S_SHAPE, float32)

        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        thread = y * SIDE + x
        head, sequence = cuda.blockIdx.y, cuda.blockIdx.z
        kv_head = head // (q.shape[1] // k.shape[1])
        entry_q, first_q, seq_q = sequence, 0, q.shape[2]
        entry_k, first_k, seq_k = sequence, 0, k.shape[2]
        if starts_q.shape[0] > 1:
            entry_q, first_q, seq_q = 0, starts_q[sequence], starts_q[sequence + 1] - starts_q[sequence]
        if starts_k.shape[0] > 1:
            entry_k, first_k, seq_k = 0, starts_k[sequence], starts_k[sequence + 1] - starts_k[sequence]
        start = cuda.blockIdx.x * ROWS
        if start >= seq_q:
            return
        offset = seq_k - seq_q if bottom_right else 0
        begin, end = 0, seq_k
        if left >= 0:
            begin = max(0, start + offset - left)
        if right >= 0:
            end = min(seq_k, min(start + ROWS, seq_q) + offset + right)

        for cell in range(thread, ROWS * width, THREADS):
            row, d = cell // width, cell % width
            q_tile[row, d] = float32(0.0)
            if start + row < seq_q and d < q.shape[3]:
                q_tile[row, d] = float32(q[entry_q, head, first_q + start + row, d])
        for i in range(EACH):
            for c in range(columns):
                acc[i, c] = float32(0.0)
        if thread < ROWS:
            top[thread] = MINUS_INF
            total[thread] = float32(0.0)

        for first in range(begin, end, ROWS):
            cuda.syncthreads()  # the last tile's V has been used
            for cell in range(thread, ROWS * width, THREADS):
                row, d = cell // width, cell % width
                k_tile[row, d] = float32(0.0)
                if first + row < end and d < k.shape[3]:
                    k_tile[row, d] = float32(k[entry_k, kv_head, first_k + first + row, d])
            cuda.syncthreads()
            for i in range(EACH):
                for j in range(EACH):
                    s[i, j] = float32(0.0)
            for d in range(width):
                for i in range(EACH):
                    for j in range(EACH):
                        s[i, j] += q_tile[y + i * SIDE, d] * k_tile[x + j * SIDE, d]
            for i in range(EACH):
                for j in range(EACH):
                    score = s[i, j] * scale
                    if softcap > float32(0.0):
                        score = softcap * math.tanh(score / softcap)
                    key = first + x + j * SIDE
                    distance = key - (start + y + i * SIDE + offset)
                    hidden = key >= end or (left >= 0 and distance < -left) or (right >= 0 and distance > right)
                    p_tile[y + i * SIDE, x + j * SIDE] = MINUS_INF if hidden else score
            cuda.syncthreads()  # scores are there, and K has been used
            for cell in range(thread, ROWS * width, THREADS):
                row, d = cell // width, cell % width
                k_tile[row, d] = float32(0.0)
                if first + row < end and d < v.shape[3]:
                    k_tile[row, d] = float32(v[entry_k, kv_head, first_k + first + row, d])
            if thread < ROWS:
                newest = top[thread]
                for j in range(ROWS):
                    newest = max(newest, p_tile[thread, j])
                shift = newest if newest > MINUS_INF else float32(0.0)
                fade[thread] = math.exp(top[thread] - shift)
                weights = total[thread] * fade[thread]
                for j in range(ROWS):
                    weight = math.exp(p_tile[thread, j] - shift)
                    p_tile[thread, j] = weight
                    weights += weight
                top[thread] = newest
                total[thread] = weights
            cuda.syncthreads()
            for i in range(EACH):
                for c in range(columns):
                    acc[i, c] *= fade[y + i * SIDE]
            for j in range(ROWS):
                for i in range(EACH):
                    for c in range(columns):
                        acc[i, c] += p_tile[y + i * SIDE, j] * k_tile[j, x + c * SIDE]

        cuda.syncthreads()
        for i in range(EACH):
            row = y + i * SIDE
            if start + row < seq_q:
                token = first_q + start + row
                for c in range(columns):
                    if x + c * SIDE < v.shape[3]:
                        value = acc[i, c] / total[row] if total[row] != float32(0.0) else float32(0.0)
                        out[entry_q, head, token, x + c * SIDE] = value
                if x == 0:
                    lse[entry_q, head, token] = (
                        top[row] + math.log(total[row]) if total[row] != float32(0.0) else MINUS_INF
                    )

    return attention
