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
        q = q.load(gl.DotOperandLayout(0, traits.scores_layout(), 4))
        queries.release(step)
    return q


# Four numbers to e4m3, into one register.
_TO_E4M3 = gl.constexpr("""{
    .reg .b16 low, high;
    cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
    cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
    mov.b32 $0, {low, high};
}""")


@gluon.jit
def packed(weights, traits):
    """Weights in e4m3, four to a number: int32 [ROWS, KEYS // 4]. Columns 16 h + 8 j + 2 t + e; byte 2 j + e."""
    grouped = weights.reshape([traits.ROWS, traits.KEYS // 16, 2, 4, 2]).permute([0, 1, 3, 2, 4])
    even, odd = gl.split(grouped)
    even_0, even_1 = gl.split(even)
    odd_0, odd_1 = gl.split(odd)
    return gl.inline_asm_elementwise(
        _TO_E4M3, "=r,f,f,f,f", [even_0, odd_0, even_1, odd_1], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def operand(codes, traits):
    """Packed weights as the left side of a product."""
    first = byte(codes, 0)
    second = byte(codes, 8)
    third = byte(codes, 16)
    fourth = byte(codes, 24)
    bytes_ = gl.join(gl.join(first, third), gl.join(second, fourth))
    whole = bytes_.reshape([traits.ROWS, traits.KEYS]).to(gl.float8e4nv, bitcast=True)
    return gl.convert_layout(whole, gl.DotOperandLayout(0, traits.out_layout(), 4))


@gluon.jit
def byte(codes, SHIFT: gl.constexpr):
    """One of the four codes of each number."""
    return (codes >> SHIFT).to(gl.int8)


@gluon.jit
def multiply_keys(q, keys, step, traits):
    """Start q k^T of a step."""
    keys.wait_full(step)
    k = keys.buffer(step).reshape([traits.KEYS, traits.HEAD_DIM]).permute([1, 0])
    nothing = gl.zeros([traits.ROWS, traits.KEYS], gl.float32, traits.scores_layout())
    return warpgroup_mma(q, k, nothing, use_acc=False, is_async=True)


@gluon.jit
def multiply_values(p, o, values, step, traits):
    """Start p v of a step; it begins with o, or where sums have two levels with nothing."""
    values.wait_full(step)
    v = values.buffer(step).reshape([traits.HEAD_DIM, traits.KEYS]).permute([1, 0])
    if traits.TWO_LEVEL:
        nothing = gl.zeros([traits.ROWS, traits.HEAD_DIM], gl.float32, traits.out_layout())
        return warpgroup_mma(p, v, nothing, use_acc=False, is_async=True)
    else:
        return warpgroup_mma(p, v, o, is_async=True)


@gluon.jit
def multiply_part(p, values, step, PART: gl.constexpr, traits):
    """Start p v of a step, from nothing, for a part of the output's columns."""
    COLUMNS: gl.constexpr = traits.columns()
    v = values.buffer(step).reshape([traits.HEAD_DIM, traits.KEYS]).slice(PART * COLUMNS, COLUMNS, 0).permute([1, 0])
    nothing = gl.zeros([traits.ROWS, COLUMNS], gl.float32, traits.out_layout())
    return warpgroup_mma(p, v, nothing, use_acc=False, is_async=True)
