"""The two matrix products of a step and their operands; both are started here and waited for by the caller."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma


@gluon.jit
def queries_of(queries, step, traits):
    """The query tile, in shared memory or in registers."""
    queries.wait_full(step)
    q = queries.buffer(step).reshape([traits.ROWS, traits.HEAD_DIM])
    if traits.Q_REGISTERS:
        q = q.load(gl.DotOperandLayout(0, traits.scores_layout(), 2))
        if not traits.SHARED_OUT:
            queries.release(step)
    return q


@gluon.jit
def operand(weights, DTYPE: gl.constexpr, traits):
    """Weights as the left side of a product."""
    return gl.convert_layout(weights.to(DTYPE), gl.DotOperandLayout(0, traits.out_layout(), 2))


@gluon.jit
def multiply_keys(q, keys, step, traits):
    """Start q k^T of a step."""
    keys.wait_full(step)
    k = keys.buffer(step).reshape([traits.KEYS, traits.HEAD_DIM]).permute([1, 0])
    nothing = gl.zeros([traits.ROWS, traits.KEYS], gl.float32, traits.scores_layout())
    return warpgroup_mma(q, k, nothing, use_acc=False, is_async=True)


@gluon.jit
def multiply_values(p, o, values, step, traits):
    """Start o += p v of a step."""
    values.wait_full(step)
    v = values.buffer(step).reshape([traits.KEYS, traits.HEAD_DIM])
    return warpgroup_mma(p, v, o, is_async=True)
