"""What says how numbers lie in registers, and when they are there."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def by_row(numbers, o):
    """A number for each row, as a column beside o."""
    return gl.convert_layout(numbers, gl.SliceLayout(1, o.type.layout))[:, None]


@gluon.jit
def pinned(x):
    """The same numbers, computed before what follows."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=False, pack=1)


@gluon.jit
def last_visible_keys(first_row, sizes, traits):
    """int32 [ROWS], as rows of scores lie: the last key that each query of a tile sees."""
    rows: gl.constexpr = gl.SliceLayout(1, traits.scores_layout())
    last_visible = gl.zeros([traits.ROWS], gl.int32, rows) + (sizes.seq_k - 1)
    if traits.CAUSAL:
        seen_by = first_row + gl.arange(0, traits.ROWS, rows) + (sizes.seq_k - sizes.seq_q)
        last_visible = gl.minimum(last_visible, seen_by)
    return last_visible
