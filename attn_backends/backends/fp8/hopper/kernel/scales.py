"""The scales of a call's blocks: float32 [batch, head, block], and where one of them lies. A stride may be 0."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.core import _aggregate as aggregate

# An output in units of a block whose numbers are 2^90 times smaller is as large as float32 holds after 2^17 keys.
MOST = gl.constexpr(2.0**90)
NOTHING = gl.constexpr(2.0**-60)
# Of scores: what scales of 0 become, and the largest that leaves them finite.
LEAST_FACTOR = gl.constexpr(2.0**-100)
MOST_FACTOR = gl.constexpr(2.0**100)


@aggregate
class Scales:
    """Where scales begin, and their strides by batch entry, head and block."""

    start: gl.tensor
    batch: gl.tensor
    head: gl.tensor
    block: gl.tensor

    @gluon.constexpr_function
    def __init__(self, start, batch, head, block):
        self.start = start
        self.batch = batch
        self.head = head
        self.block = block

    @gluon.jit
    def of(self, batch, head):
        """Those of a head: where they begin."""
        return self.start + batch.to(gl.int64) * self.batch + head.to(gl.int64) * self.head

    @gluon.jit
    def at(self, head_start, token, traits):
        """The scale of the block that a token lies in."""
        return gl.load(head_start + token // traits.BLOCK * self.block)


@gluon.jit
def oriented(scores, scale, traits):
    """(scores, scale) with a positive scale that float32 multiplies with: their product is as it was; a NaN stays.

    SIGNED: the scales are a caller's, and may be negative.
    """
    if traits.SIGNED:  # noqa: SIM102  # the one is known when it is compiled, the other is not
        if scale < 0.0:
            scores = -scores
            scale = -scale
    scale = gl.where(scale < LEAST_FACTOR, LEAST_FACTOR, scale)
    return scores, gl.where(scale > MOST_FACTOR, MOST_FACTOR, scale)


@gluon.jit
def unit_of(scale):
    """A scale of V as a unit that can be divided by: for 0, one in which nothing counts."""
    return gl.where(scale == 0.0, NOTHING, scale)


@gluon.jit
def ratio_of(before, after):
    """What numbers in the one unit are in the other; a NaN stays."""
    ratio = before / after
    return gl.where(ratio > MOST, MOST, gl.where(ratio < -MOST, -MOST, ratio))
