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
