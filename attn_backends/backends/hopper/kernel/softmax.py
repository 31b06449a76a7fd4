"""The online softmax of one tile of scores, in base 2.

    m'   = max(m, rowmax(s))
    w    = exp2(s c - m' c)         c = scale * log2(e)
    fade = exp2(m c - m' c)
    l    = l fade + rowsum(w)

m is the largest score so far, unscaled; a row that has seen no key has m = -inf and l = 0, and stays finite.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

LN2 = gl.constexpr(0.6931471805599453)
MINUS_INF = gl.constexpr(float("-inf"))


@gluon.jit
def weigh(scores, top, total, scale, MASKED: gl.constexpr):
    """(weights, m, l, fade) of a tile of scores; MASKED: whether a row of it may have no score but -inf."""
    highest = gl.maximum(top, gl.max(scores, 1))
    shift = highest * scale
    if MASKED:
        shift = gl.where(highest == MINUS_INF, 0.0, shift)
    fade = gl.exp2(top * scale - shift)
    weights = gl.exp2(scores * scale - shift[:, None])
    return weights, highest, total * fade + gl.sum(weights, 1), fade


@gluon.jit
def hide(scores, last_visible, first_key):
    """Scores, -inf where the key lies behind the row's last visible one, int32 [ROWS]."""
    # Columns by 8: in registers the groups and the pairs, so that they are constants, and over threads what is between them.
    grouped = scores.reshape([scores.shape[0], scores.shape[1] // 8, 4, 2])
    whole: gl.constexpr = grouped.type.layout
    by_row: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, whole)))
    by_group: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, whole)))
    by_thread: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, whole)))
    by_pair: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, whole)))
    fixed = (
        gl.arange(0, scores.shape[1] // 8, by_group)[None, :, None, None] * 8
        + gl.arange(0, 2, by_pair)[None, None, None, :]
    )
    last = gl.convert_layout(last_visible - first_key, by_row)[:, None, None, None]
    last = last - gl.arange(0, 4, by_thread)[None, None, :, None] * 2
    hidden = gl.where(fixed <= last, grouped, MINUS_INF)
    return gl.convert_layout(hidden.reshape([scores.shape[0], scores.shape[1]]), scores.type.layout)


@gluon.jit
def finish(top, total, scale):
    """(1 / l, LSE): what the output is multiplied with, and the natural logarithm; a row that saw no key has 0, -inf."""
    seen = total != 0.0  # NaN counts as seen
    filled = gl.where(seen, total, 1.0)
    return gl.where(seen, 1.0 / filled, 0.0), gl.where(seen, (top * scale + gl.log2(filled)) * LN2, MINUS_INF)
