"""The producer: one warp that copies Q, K and V into their rings, in the order in which they are needed.

Keys come last to first: the steps that the diagonal or the end of the keys cuts are then the first ones.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attn_backends.backends.hopper.kernel.schedule import draw, pass_on, tickets_of, work_of


@gluon.jit
def produce(q, k, v, queries, keys, values, tickets, counter, sizes, traits):
    """q, k, v: descriptors; queries, keys, values: their rings; tickets: a ring of numbers, filled where DYNAMIC."""
    ticket = gl.program_id(0)
    total = tickets_of(sizes, traits)
    turn = 0
    done = 0
    while ticket < total:
        work = work_of(ticket, sizes, traits)
        kv_head = work.head // sizes.gqa_ratio
        last = (work.steps - 1) * traits.KEYS
        copy_queries(q, queries, work, turn, 0, 1, traits)
        keys.copy(k, [work.batch, kv_head, last, 0], done)
        copy_queries(q, queries, work, turn, 1, traits.Q_TILES, traits)
        values.copy(v, [work.batch, kv_head, last, 0], done)
        if traits.DYNAMIC:
            ticket = draw(counter)
            pass_on(tickets, turn, ticket, 1)
        else:
            ticket += gl.num_programs(0)
        for step in range(1, work.steps):
            keys.copy(k, [work.batch, kv_head, last - step * traits.KEYS, 0], done + step)
            values.copy(v, [work.batch, kv_head, last - step * traits.KEYS, 0], done + step)
        done += work.steps
        turn += 1


@gluon.jit
def copy_queries(q, queries, work, turn, FIRST: gl.constexpr, END: gl.constexpr, traits):
    """Query tiles FIRST to END - 1 of a ticket; the ring of queries has one buffer per query tile."""
    for tile in gl.static_range(FIRST, END):
        start = work.start + tile * traits.ROWS
        queries.copy(q, [work.batch, work.head, start, 0], turn * traits.Q_TILES + tile)
