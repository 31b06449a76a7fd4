"""A consumer: one warpgroup that owns one query tile of every ticket, from its scores to its output.

    s_0 = q k_0^T;  p_0, m, l = softmax(s_0)
    for step j = 1, 2, ...:
        s_j = q k_j^T                     issued before
        o  += p_(j-1) v_(j-1)             so that the second runs while the first is weighed
        p_j, m, l, fade = softmax(s_j)
        o  *= fade
    o += p v of the last step
    out = o / l,   lse = m + ln l

Products of one warpgroup retire in order: when one may be outstanding, the scores are there. K is given back then, V only
when its product is known to be finished.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma_wait

from attn_backends.backends.hopper.kernel.names import copy_out
from attn_backends.backends.hopper.kernel.products import multiply_keys, multiply_values, operand, queries_of
from attn_backends.backends.hopper.kernel.schedule import steps_of, take, tickets_of, visible_keys, work_of
from attn_backends.backends.hopper.kernel.softmax import MINUS_INF, finish, hide, weigh
from attn_backends.backends.hopper.kernel.turns import await_turn, yield_turn


@gluon.jit
def consume(
    TILE: gl.constexpr, queries, keys, values, outs, turns, tickets, out, lse, lse_strides, scale, sizes, traits
):
    """Query tile TILE of every ticket.

    queries, keys, values, tickets: rings; outs: buffers of the output, [Q_TILES, 1, 1, ROWS, HEAD_DIM]
    turns: barriers, one per warpgroup, of those that take turns; out: a descriptor; lse: float32
    lse_strides: (batch, head); scale: softmax scale * log2(e)
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
        o, top, sums = walk(TILE, queries, keys, values, turns, turn, done, mine, first_row, scale, sizes, traits)
        done += mine
        inverse, natural = finish(top, sums, scale)
        rows = first_row + gl.arange(0, traits.ROWS, natural.type.layout)
        row = lse + work.batch.to(gl.int64) * lse_strides[0] + work.head.to(gl.int64) * lse_strides[1] + rows
        gl.store(row, natural, mask=rows < sizes.seq_q)
        if traits.DYNAMIC:
            ticket = take(tickets, turn, 4)
        else:
            ticket += gl.num_programs(0)
        tile = outs.index(TILE)
        if not traits.SHARED_OUT:
            tma.store_wait(0)
        o = warpgroup_mma_wait(0, [o])
        values.release(done - 1)
        o = o * gl.convert_layout(inverse, gl.SliceLayout(1, o.type.layout))[:, None]
        tile.reshape([traits.ROWS, traits.HEAD_DIM]).store(o.to(tile.dtype))
        fence_async_shared()
        copy_out(out, [work.batch, work.head, first_row, 0], tile)
        if traits.SHARED_OUT:
            tma.store_wait(0)
            queries.release(turn * traits.Q_TILES + TILE)
        turn += 1
    tma.store_wait(0)


@gluon.jit
def walk(TILE: gl.constexpr, queries, keys, values, turns, turn, done, steps, first_row, scale, sizes, traits):
    """(o, m, l) of a query tile after `steps` steps of keys, last to first; the last product with V is still running."""
    rows: gl.constexpr = gl.SliceLayout(1, traits.scores_layout())
    last_visible = gl.zeros([traits.ROWS], gl.int32, rows) + (sizes.seq_k - 1)
    if traits.CAUSAL:
        seen_by = first_row + gl.arange(0, traits.ROWS, rows) + (sizes.seq_k - sizes.seq_q)
        last_visible = gl.minimum(last_visible, seen_by)
    MASKED: gl.constexpr = traits.CAUSAL or not traits.EVEN_K
    q = queries_of(queries, turn * traits.Q_TILES + TILE, traits)
    o = gl.zeros([traits.ROWS, traits.HEAD_DIM], gl.float32, traits.out_layout())
    top = gl.full([traits.ROWS], MINUS_INF, gl.float32, rows)
    total = gl.zeros_like(top)
    if traits.CAUSAL:
        # The diagonal cuts two steps at most, and one where tiles meet it at their corners.
        gl.static_assert(traits.KEYS >= traits.ROWS)
        cut = steps - visible_keys(first_row, sizes, traits) // traits.KEYS
        if cut > 1:
            o, top, total = begin(
                TILE,
                q,
                o,
                top,
                total,
                keys,
                values,
                turns,
                done,
                scale,
                last_visible,
                (steps - 1) * traits.KEYS,
                traits,
            )
            done += 1
            steps -= 1
    await_turn(turns, done, TILE, traits)
    scores = warpgroup_mma_wait(0, [multiply_keys(q, keys, done, traits)])
    yield_turn(turns, TILE, traits)
    keys.release(done)
    if MASKED:
        scores = hide(scores, last_visible, (steps - 1) * traits.KEYS)
    weights, top, total, fade = weigh(scores, top, total, scale, MASKED)
    p = operand(weights, keys.buffers.dtype, traits)
    if traits.CAUSAL:
        o = o * gl.convert_layout(fade, gl.SliceLayout(1, o.type.layout))[:, None]
    for step in range(1, steps):
        p, o, top, total = advance(TILE, q, p, o, top, total, keys, values, turns, done + step, scale, traits)
    if not traits.SHARED_OUT and not traits.Q_REGISTERS:
        queries.release(turn * traits.Q_TILES + TILE)
    return multiply_values(p, o, values, done + steps - 1, traits), top, total


@gluon.jit
def begin(TILE: gl.constexpr, q, o, top, total, keys, values, turns, step, scale, last_visible, first_key, traits):
    """(o, m, l) after a step that the diagonal cuts and another follows; nothing of it is left to overlap with.

    Weights that are carried from one loop into another, 16 bits each, are taken apart and put together again in every step;
    so the steps of a tile are one loop, and what is peculiar comes before it.
    """
    await_turn(turns, step, TILE, traits)
    scores = warpgroup_mma_wait(0, [multiply_keys(q, keys, step, traits)])
    keys.release(step)
    weights, top, total, _fade = weigh(hide(scores, last_visible, first_key), top, total, scale, True)
    p = operand(weights, keys.buffers.dtype, traits)
    o = warpgroup_mma_wait(0, [multiply_values(p, o, values, step, traits)])
    yield_turn(turns, TILE, traits)
    values.release(step)
    return o, top, total


@gluon.jit
def advance(TILE: gl.constexpr, q, p, o, top, total, keys, values, turns, step, scale, traits):
    """One step: the weights of its scores, while the weights of the step before it meet their values."""
    await_turn(turns, step, TILE, traits)
    if traits.S_STAGES == 2:
        scores = multiply_keys(q, keys, step, traits)
        o = multiply_values(p, o, values, step - 1, traits)
        yield_turn(turns, TILE, traits)
        scores = warpgroup_mma_wait(1, [scores])
    else:
        o = warpgroup_mma_wait(0, [multiply_values(p, o, values, step - 1, traits)])
        values.release(step - 1)
        scores = multiply_keys(q, keys, step, traits)
        yield_turn(turns, TILE, traits)
        scores = warpgroup_mma_wait(0, [scores])
    keys.release(step)
    weights, top, total, fade = weigh(scores, top, total, scale, False)
    if traits.LATE_WAIT:
        # A branch, which the assembler moves no exponential across: without one it waits before it computes them.
        values.wait_full(step)
    if traits.S_STAGES == 2:
        o = warpgroup_mma_wait(0, [o])
        values.release(step - 1)
    o = o * gl.convert_layout(fade, gl.SliceLayout(1, o.type.layout))[:, None]
    return operand(weights, p.dtype, traits), o, top, total


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
