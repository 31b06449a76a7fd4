"""A tile's steps, one after the other: scores, weights, product, in the same registers; what overlaps are the warpgroups.

    s = q k_j^T;   p, m, l, fade = softmax(s);   o = o r_j + p v_j       r: the fade, times the last unit over this one

In fp8 a step's exponentials take as long as its products, and three warpgroups that alternate keep both units busy where two
with overlapping steps do not: heads of 128 run 8 to 20 % faster so. Heads of 256 have no registers for scores, output and
a whole product: theirs comes in two halves.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma_wait

from attn_backends.backends.fp8.hopper.kernel.products import multiply_keys, multiply_part, operand, packed, queries_of
from attn_backends.backends.fp8.hopper.kernel.registers import by_row, last_visible_keys, pinned
from attn_backends.backends.fp8.hopper.kernel.scales import oriented, ratio_of, unit_of
from attn_backends.backends.fp8.hopper.kernel.softmax import MINUS_INF, weigh
from attn_backends.backends.hopper.kernel.schedule import visible_keys
from attn_backends.backends.hopper.kernel.softmax import hide
from attn_backends.backends.hopper.kernel.turns import await_turn, yield_turn


@gluon.jit
def walk_one_by_one(
    TILE: gl.constexpr, queries, keys, values, turns, turn, done, steps, first_row,
    k_scales, v_scales, k_scale, v_scale, factor, sizes, traits,
):  # fmt: skip
    """(parts of o, unit, m, l) of a query tile; one step after the other, the warpgroups beside each other."""
    rows: gl.constexpr = gl.SliceLayout(1, traits.scores_layout())
    last_visible = last_visible_keys(first_row, sizes, traits)
    q = queries_of(queries, turn * traits.Q_TILES + TILE, traits)
    left = gl.zeros([traits.ROWS, traits.columns()], gl.float32, traits.out_layout())
    right = gl.zeros_like(left)
    top = gl.full([traits.ROWS], MINUS_INF, gl.float32, rows)
    total = gl.zeros_like(top)
    masked = 0
    if traits.CAUSAL:
        masked = steps - visible_keys(first_row, sizes, traits) // traits.KEYS
    elif not traits.EVEN_K:
        masked = 1
    key = (steps - 1) * traits.KEYS
    scale = k_scales.at(k_scale, key, traits)
    unit = unit_of(v_scales.at(v_scale, key, traits), traits)
    ratio = ratio_of(unit, unit, traits)
    for step in range(done, done + steps):
        next_key = gl.maximum(key - traits.KEYS, 0)
        next_scale = k_scales.at(k_scale, next_key, traits)
        next_unit = unit_of(v_scales.at(v_scale, next_key, traits), traits)
        await_turn(turns, step, TILE, traits)
        scores = warpgroup_mma_wait(0, [multiply_keys(q, keys, step, traits)])
        yield_turn(turns, TILE, traits)
        keys.release(step)
        scores, factored = oriented(scores, scale * factor, traits)
        if step - done < masked:
            scores = hide(scores, last_visible, key)
        weights, top, total, fade = weigh(scores, top, total, factored, traits.CAUSAL or not traits.EVEN_K, traits)
        p = operand(packed(weights, traits), traits)
        fade = by_row(fade * ratio, left)
        values.wait_full(step)
        left = left * fade + warpgroup_mma_wait(0, [multiply_part(p, values, step, 0, traits)])
        if traits.PARTS == 2:
            # Computed here, and a branch: else both compilers start the second product first, and have no registers for both.
            left = pinned(left)
            values.wait_full(step)
            right = right * fade + warpgroup_mma_wait(0, [multiply_part(p, values, step, 1, traits)])
        values.release(step)
        ratio = ratio_of(unit, next_unit, traits)
        key = next_key
        scale = next_scale
        unit = next_unit
    if not traits.Q_REGISTERS:
        queries.release(turn * traits.Q_TILES + TILE)
    return (left, right), unit, top, total
