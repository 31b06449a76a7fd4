"""The online softmax of one tile of scores, in base 2, where each tile has a scale of its own.

    m'   = max(m, rowmax(s) c)      c = softmax scale * log2(e) * q's scale * k's scale of the block, positive
    w    = exp2(s c - m' + 8)       at most 2^8: e4m3 holds 448, and its small numbers are then used as well
    fade = exp2(m - m')
    l    = l fade + rowsum(w)

m is the largest score so far, scaled; a row that has seen no key has m = -inf and l = 0, and stays finite. The 2^8 goes
out of w v and out of l alike. Where c is a power of two, s c and m' are exact, and so is their difference next to 0, however
large they are; 8 - m' is rounded down, so that no weight is more than 2^8 where m' is beyond 2^27 and its steps are 16.
Where c is a caller's number, s c - m' is off by what m' was rounded to a float32: where m' is beyond 2^18, so that this
counts, both are made smaller, to 2^18; the largest score takes the whole row with either. That is waited for
between the maximum and the exponentials, and takes 5 %.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

LN2 = gl.constexpr(0.6931471805599453)
MINUS_INF = gl.constexpr(float("-inf"))
REACH = gl.constexpr(2.0**18)
RAISED = gl.constexpr(8.0)  # log2 of what the largest weight becomes


@gluon.jit
def weigh(scores, top, total, scale, MASKED: gl.constexpr, traits):
    """(weights, m, l, fade) of a tile of scores; MASKED: whether a row of it may have no score but -inf."""
    highest = gl.maximum(top, gl.max(scores, 1) * scale)
    base = highest
    if MASKED:
        base = gl.where(highest == MINUS_INF, 0.0, highest)
    fade = gl.exp2(top - base)
    if traits.ANY_SCALE:
        share = gl.minimum(REACH * inverse_of(gl.abs(base)), 1.0)
        weights = gl.exp2(scores * (scale * share)[:, None] - (base * share - RAISED)[:, None])
    else:
        weights = gl.exp2(scores * scale + offset_of(base)[:, None])
    return weights, highest, total * fade + gl.sum(weights, 1), fade


@gluon.jit
def offset_of(base):
    """RAISED - base, rounded down: to nearest, the largest weight would be 2^16 for every other base from 2^27 to 2^28.

    0f41000000 is RAISED.
    """
    return gl.inline_asm_elementwise(
        "sub.rm.f32 $0, 0f41000000, $1;", "=f,f", [base], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def inverse_of(x):
    """1 / x to 23 bits, in one instruction."""
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def finish(top, total):
    """(1 / l, LSE): what the output is multiplied with, and the natural logarithm; a row that saw no key has 0, -inf."""
    seen = total != 0.0
    filled = gl.where(seen, total, 1.0)
    return gl.where(seen, 1.0 / filled, 0.0), gl.where(seen, (top - RAISED + gl.log2(filled)) * LN2, MINUS_INF)
