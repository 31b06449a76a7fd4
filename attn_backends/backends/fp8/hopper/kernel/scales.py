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
    """(scores, scale) with a positive scale that float32 multiplies with: their product is as it was.

    ANY_SCALE: it may be negative or NaN, which stays.
    """
    if traits.ANY_SCALE:
        if scale < 0.0:
            scores = -scores
            scale = -scale
        scale = gl.where(scale < LEAST_FACTOR, LEAST_FACTOR, scale)
        scale = gl.where(scale > MOST_FACTOR, MOST_FACTOR, scale)
    else:
        scale = gl.minimum(gl.maximum(scale, LEAST_FACTOR), MOST_FACTOR)
    return scores, scale


@gluon.jit
def power_of_two(x):
    """The nearest one to a positive float32 that is one but for rounding."""
    bits = x.to(gl.int32, bitcast=True)
    return ((bits + 0x400000) & 0x7F800000).to(gl.float32, bitcast=True)


@gluon.jit
def unit_of(scale, traits):
    """A scale of V as a unit that can be divided by: for a caller's 0, one in which nothing counts."""
    if traits.ANY_SCALE:
        scale = gl.where(scale == 0.0, NOTHING, scale)
    return scale


@gluon.jit
def ratio_of(before, after, traits):
    """What numbers in the one unit are in the other; a NaN stays. The pass's own scales are at most MOST apart."""
    ratio = before / after
    if traits.ANY_SCALE:
        ratio = gl.where(ratio > MOST, MOST, gl.where(ratio < -MOST, -MOST, ratio))
    return ratio
