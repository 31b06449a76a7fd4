"""The online softmax of 16 queries x 64 keys in registers; a thread has 16 scores of each of two rows.

Scores are in units of log2, so that a weight is one `ex2`. Their numbering is that of products.py: register r of a product is
row g for r = 0, 1 and row g + 8 for r = 2, 3, at key 8 j + 2 t + r % 2. Tops, totals and fades are pairs, one for each row.
"""

from __future__ import annotations

import math
from typing import Any

from attn_backends.backends.numba_mma.config import Config
from attn_backends.backends.numba_mma.products import SCORES
from attn_backends.backends.numba_mma.stage import stage

LN_2, LOG2_E = math.log(2.0), math.log2(math.e)
SMALL = 0.25  # below it tanh is a polynomial: 1 - 2 / (1 + e^2x) would lose its digits
TANH = (-1 / 3, 2 / 15, -17 / 315, 62 / 2835)  # x + ..., of x^3, x^5, x^7, x^9


def row_of(score: int) -> int:
    """0 or 1: which of its two rows a thread's score belongs to."""
    return score % 4 // 2


@stage(("real", SCORES))
def scaled(m: Any, _config: Config, s: Any, scale: Any, _cap: Any) -> list[Any]:
    """scale s. Each product is rounded once, so that the largest score less the row's top is 0 whatever its size."""
    return [m.product(score, scale) for score in s]


@stage(("real", SCORES))
def capped(m: Any, _config: Config, s: Any, scale: Any, cap: Any) -> list[Any]:
    """cap tanh(scale s), where `scale` holds one over the softcap and `cap` the softcap in units of log2."""
    return [m.product(_tanh(m, m.product(score, scale)), cap) for score in s]


def _tanh(m: Any, x: Any) -> Any:
    square = x * x
    series = m.real(TANH[-1])
    for factor in reversed(TANH[:-1]):
        series = series * square + factor
    power = m.exp2(m.magnitude(x) * (2 * LOG2_E))
    far = m.signed(m.real(1.0) - m.reciprocal(power + 1.0) * 2.0, x)
    return m.select(m.magnitude(x) < SMALL, x * square * series + x, far)


@stage(("real", SCORES))
def hidden(m: Any, _config: Config, x: Any, low: Any, high: Any, end: Any) -> list[Any]:
    """-inf at keys that a row does not see. Row r of the warp sees keys low + r <= key < high + r, and none from `end` on."""
    lane = m.lane
    first = (lane & 3) * 2
    ahead, end = (lane >> 2) - first, m.narrow(end) - first
    bounds = []
    for more in (0, 8):
        above = m.narrow(high) + ahead + more
        bounds.append((m.narrow(low) + ahead + more, m.select(above < end, above, end)))
    found = []
    for at, score in enumerate(x):
        below, above = bounds[row_of(at)]
        key = m.integer(8 * (at // 4) + at % 2)
        found.append(m.select((key >= below) & (key < above), score, m.real(-math.inf)))
    return found


@stage(("real", 2))
def tops(m: Any, _config: Config, x: Any, top: Any) -> list[Any]:
    """The largest score of each row so far."""
    found = list(top)
    for at, score in enumerate(x):
        found[row_of(at)] = m.maximum(found[row_of(at)], score)
    for distance in (1, 2):
        found = [m.maximum(one, m.from_lane(one, distance)) for one in found]
    return found


@stage(("real", 2))
def fades(m: Any, _config: Config, top: Any, newest: Any) -> list[Any]:
    """What earlier weights are worth under a new top."""
    return [m.exp2(before - _shift(m, now)) for before, now in zip(top, newest, strict=True)]


@stage(("real", SCORES))
def weights(m: Any, _config: Config, x: Any, newest: Any) -> list[Any]:
    """2^(x - top)."""
    shifts = [_shift(m, now) for now in newest]
    return [m.exp2(score - shifts[row_of(at)]) for at, score in enumerate(x)]


def _shift(m: Any, top: Any) -> Any:
    """The top; 0 of a row that has seen nothing, whose scores are all -inf."""
    return m.select(top > -math.inf, top, m.real(0.0))


@stage(("real", 2))
def totals(m: Any, _config: Config, total: Any, fade: Any, p: Any) -> list[Any]:
    """Sums of the thread's own weights; the four threads of a row meet at the end."""
    found = [one * by for one, by in zip(total, fade, strict=True)]
    for at, weight in enumerate(p):
        found[row_of(at)] = found[row_of(at)] + weight
    return found


@stage(("integer", SCORES // 2))
def packed(m: Any, _config: Config, p: Any) -> list[Any]:
    """Weights in 16 bits: an operand `a` for every sixteen keys."""
    return [m.pack(p[at], p[at + 1]) for at in range(0, SCORES, 2)]


@stage(("integer", 0))
def fading(m: Any, _config: Config, fade: Any) -> Any:
    """Whether any row of the warp has a new top: 0 or 1."""
    return m.anywhere((fade[0] < 1.0) | (fade[1] < 1.0))


@stage(lambda config: ("real", config.head_dim // 2))
def faded(m: Any, _config: Config, acc: Any, fade: Any) -> list[Any]:
    """Earlier sums under a new top."""
    return [one * fade[row_of(at)] for at, one in enumerate(acc)]


@stage(("real", 2))
def whole(m: Any, _config: Config, total: Any) -> list[Any]:
    """The total of a row, from its four threads."""
    for distance in (1, 2):
        total = [one + m.from_lane(one, distance) for one in total]
    return list(total)


@stage(lambda config: ("integer", config.head_dim // 4))
def normalised(m: Any, config: Config, acc: Any, total: Any) -> list[Any]:
    """acc / total in 16 bits; 0 of a row that saw nothing, NaN of one that saw a NaN."""
    shares = [m.select(m.real(0.0) >= one, 0.0, m.reciprocal(one)) for one in total]
    numbers = [one * shares[row_of(at)] for at, one in enumerate(acc)]
    return [m.pack(numbers[at], numbers[at + 1]) for at in range(0, config.head_dim // 2, 2)]


@stage(("real", 2))
def logarithms(m: Any, _config: Config, top: Any, total: Any) -> list[Any]:
    """The LSE of each row, natural; -inf of a row that saw nothing: its top is that."""
    return [
        m.select(m.real(0.0) >= one, -math.inf, (high + m.log2(one)) * LN_2)
        for high, one in zip(top, total, strict=True)
    ]
