"""A tile's steps, each beside the one before: the scores of a step are computed while the weights of the last meet their values.

    s_j = q k_j^T                       issued before
    y   = p_(j-1) v_(j-1)               so that it runs while the scores are weighed
    p_j, m, l, fade = softmax(s_j)
    o   = o r_(j-1) + y                 r: the fade of that step, times the last unit over its own

The order of `hopper`; the unit of o is the scale of V's block. Where sums have one level, o r is what the product starts from.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma_wait

from attn_backends.backends.fp8.hopper.kernel.products import (
    multiply_keys,
    multiply_values,
    operand,
    packed,
    queries_of,
)
from attn_backends.backends.fp8.hopper.kernel.registers import by_row, last_visible_keys, pinned
from attn_backends.backends.fp8.hopper.kernel.scales import oriented, ratio_of, unit_of
from attn_backends.backends.fp8.hopper.kernel.softmax import MINUS_INF, weigh
from attn_backends.backends.hopper.kernel.schedule import visible_keys
from attn_backends.backends.hopper.kernel.softmax import hide
from attn_backends.backends.hopper.kernel.turns import await_turn, yield_turn


@gluon.jit
def walk(
    TILE: gl.constexpr, queries, keys, values, turns, turn, done, steps, first_row,
    k_scales, v_scales, k_scale, v_scale, factor, sizes, traits,
):  # fmt: skip
    """(o, y, r, unit, m, l) of a query tile after `steps` steps of keys, last to first; y is still being computed."""
    rows: gl.constexpr = gl.SliceLayout(1, traits.scores_layout())
    last_visible = last_visible_keys(first_row, sizes, traits)
    MASKED: gl.constexpr = traits.CAUSAL or not traits.EVEN_K
    first_key = (steps - 1) * traits.KEYS
    scale = k_scales.at(k_scale, first_key, traits) * factor
    unit = unit_of(v_scales.at(v_scale, first_key, traits), traits)
    q = queries_of(queries, turn * traits.Q_TILES + TILE, traits)
    o = gl.zeros([traits.ROWS, traits.HEAD_DIM], gl.float32, traits.out_layout())
    top = gl.full([traits.ROWS], MINUS_INF, gl.float32, rows)
    total = gl.zeros_like(top)
    ratio = ratio_of(unit, unit, traits)
    if traits.CAUSAL:
        # The diagonal cuts two steps at most, and one where tiles meet it at their corners.
        gl.static_assert(traits.KEYS >= traits.ROWS)
        cut = steps - visible_keys(first_row, sizes, traits) // traits.KEYS
        if cut > 1:
            await_turn(turns, done, TILE, traits)
            scores = warpgroup_mma_wait(0, [multiply_keys(q, keys, done, traits)])
            keys.release(done)
            scores, scale = oriented(scores, scale, traits)
            weights, top, total, _fade = weigh(hide(scores, last_visible, first_key), top, total, scale, True, traits)
            o = warpgroup_mma_wait(
                0, [multiply_values(operand(packed(weights, traits), traits), o, values, done, traits)]
            )
            yield_turn(turns, TILE, traits)
            values.release(done)
            done += 1
            steps -= 1
            first_key -= traits.KEYS
            scale = k_scales.at(k_scale, first_key, traits) * factor
            before = unit
            unit = unit_of(v_scales.at(v_scale, first_key, traits), traits)
            ratio = ratio_of(before, unit, traits)
    await_turn(turns, done, TILE, traits)
    scores = warpgroup_mma_wait(0, [multiply_keys(q, keys, done, traits)])
    yield_turn(turns, TILE, traits)
    keys.release(done)
    next_key = gl.maximum(first_key - traits.KEYS, 0)
    next_scale = k_scales.at(k_scale, next_key, traits)
    next_unit = unit_of(v_scales.at(v_scale, next_key, traits), traits)
    scores, scale = oriented(scores, scale, traits)
    if MASKED:
        scores = hide(scores, last_visible, first_key)
    weights, top, total, fade = weigh(scores, top, total, scale, MASKED, traits)
    fade = fade * ratio
    codes = packed(weights, traits)
    if traits.CAUSAL:
        o = prepared(o, fade, traits)
    for step in range(1, steps):
        scale = next_scale * factor
        ratio = ratio_of(unit, next_unit, traits)
        unit = next_unit
        next_key = gl.maximum(next_key - traits.KEYS, 0)
        next_scale = k_scales.at(k_scale, next_key, traits)
        next_unit = unit_of(v_scales.at(v_scale, next_key, traits), traits)
        codes, o, fade, top, total = advance(
            TILE, q, codes, o, fade, top, total, keys, values, turns, done + step, scale, ratio, traits
        )
    if not traits.Q_REGISTERS:
        queries.release(turn * traits.Q_TILES + TILE)
    y = multiply_values(operand(codes, traits), o, values, done + steps - 1, traits)
    return o, y, fade, unit, top, total


@gluon.jit
def advance(TILE: gl.constexpr, q, codes, o, fade, top, total, keys, values, turns, step, scale, ratio, traits):
    """One step: the weights of its scores, while the weights of the step before it meet their values."""
    await_turn(turns, step, TILE, traits)
    scores = multiply_keys(q, keys, step, traits)
    y = multiply_values(operand(codes, traits), o, values, step - 1, traits)
    yield_turn(turns, TILE, traits)
    scores = warpgroup_mma_wait(1, [scores])
    keys.release(step)
    scores, scale = oriented(scores, scale, traits)
    weights, top, total, next_fade = weigh(scores, top, total, scale, False, traits)
    next_fade = next_fade * ratio
    if traits.LATE_WAIT:
        # Computed here, and a branch: else both compilers move the wait before the exponentials.
        weights = pinned(weights)
        values.wait_full(step)
    y = warpgroup_mma_wait(0, [y])
    values.release(step - 1)
    o = prepared(settle(o, y, fade, traits), next_fade, traits)
    return packed(weights, traits), o, next_fade, top, total


@gluon.jit
def settle(o, y, fade, traits):
    """The output with a product that is done."""
    if traits.TWO_LEVEL:
        return o * by_row(fade, o) + y
    else:
        return y


@gluon.jit
def prepared(o, fade, traits):
    """What the next product starts from, where it starts from o."""
    if traits.TWO_LEVEL:
        return o
    else:
        return o * by_row(fade, o)
