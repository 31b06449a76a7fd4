"""Both matrix products, one warp's share: 16 queries x 64 keys, and 16 queries x head_dim.

`mma` multiplies [16, 16] by [16, 8]. Where thread l of a warp, g = l // 4 and t = l % 4, has its numbers:

    sums [16, 8]    registers 0, 1: row g, columns 2t and 2t + 1;     2, 3: the same columns of row g + 8
    a   [16, 16]    0: row g, columns 2t, 2t + 1;  1: row g + 8;      2, 3: the same rows, eight columns on
    b   [16, 8]     0: column g, rows 2t, 2t + 1;                     1: the same column, eight rows on

So the sums of two neighbouring products, rounded and packed, are an `a` as they lie: P needs no way through memory.
Scores of a thread are numbered 4 j + r: key tile j of 8 keys, register r; outputs likewise, by tiles of 8 columns.
"""

from __future__ import annotations

from typing import Any

from attn_backends.backends.numba_mma.config import CHUNK, KEYS, ROWS, Config
from attn_backends.backends.numba_mma.stage import stage

SCORES = KEYS // 2  # per thread
STEP = 2 * CHUNK  # bytes: sixteen columns, which one product takes


@stage(lambda config: ("integer", config.head_dim // 4))
def queries(m: Any, config: Config, shared: Any) -> list[Any]:
    """The warp's queries as operands `a`, four registers for every sixteen columns."""
    lane = m.lane
    row = m.warp * ROWS + (lane & 15)
    address = m.narrow(shared) + row * config.pitch + ((lane >> 4) ^ (lane & 7)) * CHUNK
    found: list[Any] = []
    for step in range(config.head_dim // 16):
        found += m.ldmatrix(address ^ (STEP * step))
    return found


@stage(("real", SCORES))
def scores(m: Any, config: Config, q: Any, keys: Any) -> list[Any]:
    """q k^T, unscaled. K lies with columns side by side, which is how `b` wants the keys."""
    lane = m.lane
    row = (lane >> 4) * 8 + (lane & 7)
    address = m.narrow(keys) + row * config.pitch + (((lane >> 3) & 1) ^ (lane & 7)) * CHUNK
    sums = [m.real(0.0)] * SCORES
    for step in range(config.head_dim // 16):
        a, place = q[4 * step : 4 * step + 4], address ^ (STEP * step)
        for pair in range(KEYS // 16):
            b = m.ldmatrix(place + pair * 16 * config.pitch)
            for half in (0, 1):
                at = 4 * (2 * pair + half)
                sums[at : at + 4] = m.mma(sums[at : at + 4], a, b[2 * half : 2 * half + 2])
    return sums


@stage(lambda config: ("real", config.head_dim // 2))
def weighted(m: Any, config: Config, acc: Any, p: Any, values: Any) -> list[Any]:
    """acc + p v. V lies with columns side by side and `b` wants its rows so: it is transposed on the way."""
    lane = m.lane
    address = m.narrow(values) + (lane & 15) * config.pitch + ((lane >> 4) ^ (lane & 7)) * CHUNK
    sums = list(acc)
    for step in range(KEYS // 16):
        a = p[4 * step : 4 * step + 4]
        for pair in range(config.head_dim // 16):
            b = m.ldmatrix((address ^ (STEP * pair)) + step * 16 * config.pitch, transposed=True)
            for half in (0, 1):
                at = 4 * (2 * pair + half)
                sums[at : at + 4] = m.mma(sums[at : at + 4], a, b[2 * half : 2 * half + 2])
    return sums
