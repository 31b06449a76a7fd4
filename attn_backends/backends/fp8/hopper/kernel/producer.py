"""The producer: one warp that copies Q, K and V^T into their rings, in the order in which they are needed.

Keys come last to first, as in `hopper`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attn_backends.backends.hopper.kernel.schedule import draw, pass_on, put_back, tickets_of, work_of


@gluon.jit
def produce(q, k, v, queries, keys, values, tickets, counter, sizes, traits):
    """q, k, v: descriptors, v over [batch, head, width, token]; the rings; tickets: a ring of numbers, filled where DYNAMIC."""
    ticket = gl.program_id(0)
    total = tickets_of(sizes, traits)
    turn = 0
    place = 0  # in the rings of keys and values
    while ticket < total:
        work = work_of(ticket, sizes, traits)
        kv_head = work.head // sizes.gqa_ratio
        first_key = (work.steps - 1) * traits.KEYS
        keys.copy(k, [work.batch, kv_head, first_key, 0], place)
        for tile in gl.static_range(traits.Q_TILES):
            start = work.start + tile * traits.ROWS
            queries.copy(q, [work.batch, work.head, start, 0], turn * traits.Q_TILES + tile)
        values.copy(v, [work.batch, kv_head, 0, first_key], place)
        while first_key > 0:
            first_key -= traits.KEYS
            place += 1
            keys.copy(k, [work.batch, kv_head, first_key, 0], place)
            values.copy(v, [work.batch, kv_head, 0, first_key], place)
        if traits.DYNAMIC:
            ticket = draw(counter)
            pass_on(tickets, turn, ticket, 1)
        else:
            ticket += gl.num_programs(0)
        place += 1
        turn += 1
    if traits.DYNAMIC:
        put_back(counter)
