"""Which query tiles a block of threads works on, in which order, and which keys they see.

A ticket is a number that stands for one block of Q_TILES query tiles of one head. Tickets go through the heads in
sweeps, as many at a time as have their keys and values in the L2 cache together; inside a sweep those that see the most
keys come first, so that the short ones fill the gaps at the end. A block of threads takes every n-th ticket or, where
tickets differ in length, draws the next one from a counter.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.core import _aggregate as aggregate

from attn_backends.backends.hopper.kernel.names import barrier


@aggregate
class Work:
    """One ticket: batch entry, head, first query; and how many steps of keys its query tiles need at most."""

    batch: gl.tensor
    head: gl.tensor
    start: gl.tensor
    steps: gl.tensor

    @gluon.constexpr_function
    def __init__(self, batch, head, start, steps):
        self.batch = batch
        self.head = head
        self.start = start
        self.steps = steps


@gluon.jit
def tickets_of(sizes, traits):
    """How many tickets there are."""
    return gl.cdiv(sizes.seq_q, traits.ROWS * traits.Q_TILES) * sizes.sequences


@gluon.jit
def work_of(ticket, sizes, traits):
    """What a ticket stands for."""
    blocks = gl.cdiv(sizes.seq_q, traits.ROWS * traits.Q_TILES)
    first = ticket // (blocks * sizes.sweep) * sizes.sweep
    inside = ticket - first * blocks
    together = gl.minimum(sizes.sweep, sizes.sequences - first)
    sequence = first + inside % together
    start = (blocks - 1 - inside // together) * (traits.ROWS * traits.Q_TILES)
    steps = steps_of(start + traits.ROWS * traits.Q_TILES - 1, sizes, traits)
    return Work(sequence // sizes.heads, sequence % sizes.heads, start, steps)


@gluon.jit
def visible_keys(query, sizes, traits):
    """How many keys a query sees; one behind the last sees as many as the last."""
    if traits.CAUSAL:
        return gl.maximum(gl.minimum(query + 1, sizes.seq_q) + (sizes.seq_k - sizes.seq_q), 0)
    else:
        return sizes.seq_k


@gluon.jit
def steps_of(last_query, sizes, traits):
    """Steps until a tile that ends with this query has seen its keys; one that sees none takes a hidden step."""
    return gl.maximum(gl.cdiv(visible_keys(last_query, sizes, traits), traits.KEYS), 1)


@gluon.jit
def draw(counter):
    """The next ticket that nobody has. counter: two numbers, tickets drawn and blocks that are done; 0 before a call."""
    return gl.atomic_add(counter, 1, sem="relaxed") + gl.num_programs(0)


@gluon.jit
def put_back(counter):
    """The last block that draws nothing more leaves both numbers at 0, for the next call."""
    left = gl.atomic_add(counter + 1, 1, sem="acq_rel")
    if left == gl.num_programs(0) - 1:
        gl.store(counter, 0)
        gl.store(counter + 1, 0)


@gluon.jit
def pass_on(tickets, turn, ticket, WARPS: gl.constexpr):
    """Tell the consumers which ticket follows that of `turn`."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    tickets.wait_empty(turn)
    tickets.buffer(turn).store(gl.full([1], 0, gl.int32, layout) + ticket)
    tickets.fill(turn)


@gluon.jit
def take(tickets, turn, WARPS: gl.constexpr):
    """The ticket that follows that of `turn`."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    tickets.wait_full(turn)
    ticket = gl.max(tickets.buffer(turn).load(layout), 0)
    # One thread says for its whole warpgroup that the ticket was read, so all of them have to have read it. Triton 3.6 and
    # 3.7 put a barrier before an arrival anyway, and this one into that; no document promises it.
    barrier()
    tickets.release(turn)
    return ticket
