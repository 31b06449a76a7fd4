"""Taking turns: at most one warpgroup issues products at a time, in order. Of the shipped pipelines, three warpgroups do."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.jit
def await_turn(turns, step, TILE: gl.constexpr, traits):
    """Wait until the warpgroup before this one has issued its products of the step; the first one, of the step before."""
    if traits.PING_PONG:
        mbarrier.wait(turns.index(TILE), (step & 1) ^ (TILE == 0))


@gluon.jit
def yield_turn(turns, TILE: gl.constexpr, traits):
    """Let the next warpgroup issue its products."""
    if traits.PING_PONG:
        mbarrier.arrive(turns.index((TILE + 1) % traits.Q_TILES), count=1)
