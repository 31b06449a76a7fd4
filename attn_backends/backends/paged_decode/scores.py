"""From products q.k to scores in log2 units, -inf where a row may not see a key.

    x = scale * q.k;  x = cap * tanh(x / cap);  score = log2(e) * (x - slope * |distance|)

Tiles are [rows, keys]; `positions` is where each row stands on the keys' diagonal.
"""

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
MINUS_INF: tl.constexpr = tl.constexpr(float("-inf"))


@triton.jit
def tanh(x):
    """tanh by one exponential of a number <= 0, so that nothing overflows; by a series where that would cancel."""
    e = tl.exp2(tl.abs(x) * (-2.0 * LOG2E))
    magnitude = (1.0 - e) / (1.0 + e)
    series = x * (1.0 - x * x * (0.3333333333 - 0.1333333333 * x * x))
    return tl.where(tl.abs(x) < 0.04, series, tl.where(x < 0, -magnitude, magnitude))


@triton.jit
def score_tile(product, row_scale, positions, keys, softcap, slopes, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr):
    """Scores of a tile, hidden keys included.

    row_scale: what turns products into scores, or with a softcap into scores / cap
    """
    if SOFTCAP:
        scores = tanh(product * row_scale[:, None]) * (softcap * LOG2E)
    else:
        scores = product * row_scale[:, None]
    if ALIBI:
        distance = tl.abs(keys[None, :] - positions[:, None]).to(tl.float32)
        scores = scores - (slopes * LOG2E)[:, None] * distance
    return scores


@triton.jit
def hide(scores, positions, keys, inside, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """-inf at keys that are not `inside`, and at those outside a row's band."""
    visible = inside[None, :]
    if RIGHT:
        visible = visible & (keys[None, :] <= (positions + right)[:, None])
    if LEFT:
        visible = visible & (keys[None, :] >= (positions - left)[:, None])
    return tl.where(visible, scores, MINUS_INF)
