"""A consumer: one warpgroup that owns one query tile of every ticket, from its scores to its output.

How a tile goes through its keys is in overlapped.py and in one_by_one.py; a pipeline does one of the two. Scales are what
`hopper` does not have: of scores, one for each step; and of V, whose block's scale is the unit of the output.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma_wait

from attn_backends.backends.fp8.hopper.kernel.one_by_one import walk_one_by_one
from attn_backends.backends.fp8.hopper.kernel.overlapped import settle, walk
from attn_backends.backends.fp8.hopper.kernel.registers import by_row
from attn_backends.backends.fp8.hopper.kernel.scales import power_of_two
from attn_backends.backends.fp8.hopper.kernel.softmax import finish
from attn_backends.backends.hopper.kernel.names import copy_out
from attn_backends.backends.hopper.kernel.schedule import steps_of, take, tickets_of, work_of
from attn_backends.backends.hopper.kernel.turns import await_turn, yield_turn


@gluon.jit
def consume(
    TILE: gl.constexpr, queries, keys, values, outs, turns, tickets, out, lse, lse_strides,
    q_scales, k_scales, v_scales, scale, sizes, traits,
):  # fmt: skip
    """Query tile TILE of every ticket.

    queries, keys, values, tickets: rings; outs: buffers of the output, [Q_TILES, 1, 1, ROWS, HEAD_DIM]
    turns: barriers, one per warpgroup, of those that take turns; out: a descriptor; lse: float32
    lse_strides: (batch, head); q_scales, k_scales, v_scales: Scales; scale: softmax scale * log2(e)
    """
    ticket = gl.program_id(0)
    total = tickets_of(sizes, traits)
    turn = 0
    done = 0
    while ticket < total:
        work = work_of(ticket, sizes, traits)
        first_row = work.start + TILE * traits.ROWS
        mine = steps_of(first_row + traits.ROWS - 1, sizes, traits)
        skip(TILE, keys, values, turns, done, work.steps - mine, traits)
        done += work.steps - mine
        kv_head = work.head // sizes.gqa_ratio
        k_scale = k_scales.of(work.batch, kv_head)
        v_scale = v_scales.of(work.batch, kv_head)
        row = gl.minimum(first_row, sizes.seq_q - 1)
        factor = q_scales.at(q_scales.of(work.batch, work.head), row, traits) * scale
        if not traits.ANY_SCALE:
            factor = power_of_two(factor)
        if traits.PARTS > 0:
            o, unit, top, sums = walk_one_by_one(
                TILE, queries, keys, values, turns, turn, done, mine, first_row,
                k_scales, v_scales, k_scale, v_scale, factor, sizes, traits,
            )  # fmt: skip
        else:
            o, y, fade, unit, top, sums = walk(
                TILE, queries, keys, values, turns, turn, done, mine, first_row,
                k_scales, v_scales, k_scale, v_scale, factor, sizes, traits,
            )  # fmt: skip
        done += mine
        inverse, natural = finish(top, sums)
        rows = first_row + gl.arange(0, traits.ROWS, natural.type.layout)
        row = lse + work.batch.to(gl.int64) * lse_strides[0] + work.head.to(gl.int64) * lse_strides[1] + rows
        gl.store(row, natural, mask=rows < sizes.seq_q)
        if traits.DYNAMIC:
            ticket = take(tickets, turn, 4)
        else:
            ticket += gl.num_programs(0)
        tma.store_wait(0)
        if traits.PARTS > 0:
            size = by_row(inverse * unit, o[0])
            for part in gl.static_range(traits.PARTS):
                column = part * traits.columns()
                write(o[part] * size, outs.index(traits.PARTS * TILE + part), out, work, first_row, column, traits)
        else:
            y = warpgroup_mma_wait(0, [y])
            values.release(done - 1)
            o = settle(o, y, fade, traits) * by_row(inverse * unit, o)
            write(o, outs.index(TILE), out, work, first_row, 0, traits)
        turn += 1
    tma.store_wait(0)


@gluon.jit
def write(o, tile, out, work, first_row, first_column, traits):
    """Start to copy columns of the output."""
    tile.reshape([traits.ROWS, traits.columns()]).store(o.to(tile.dtype))
    fence_async_shared()
    copy_out(out, [work.batch, work.head, first_row, first_column], tile)


@gluon.jit
def skip(TILE: gl.constexpr, keys, values, turns, done, steps, traits):
    """Give back steps that this query tile does not need."""
    for step in range(done, done + steps):
        await_turn(turns, step, TILE, traits)
        yield_turn(turns, TILE, traits)
        keys.wait_full(step)
        keys.release(step)
        values.wait_full(step)
        values.release(step)
