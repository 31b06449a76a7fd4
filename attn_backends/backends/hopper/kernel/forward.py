"""The kernel: softmax(scale q k^T) v for one call, by blocks of threads that stay and take one ticket after the other.

One warp copies (producer.py), Q_TILES warpgroups compute (consumer.py); they meet at the rings (rings.py). Registers are
handed from the one to the others.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from attn_backends.backends.hopper.kernel.consumer import consume
from attn_backends.backends.hopper.kernel.producer import produce
from attn_backends.backends.hopper.kernel.rings import new_ring, ring_of
from attn_backends.backends.hopper.kernel.traits import Sizes, Traits

PRODUCER_REGISTERS = gl.constexpr(24)
SIZES = ["lse_batch", "lse_head", "batch", "heads", "gqa_ratio", "seq_q", "seq_k", "sweep"]


@gluon.jit(do_not_specialize=SIZES)
def attention_forward(
    q, k, v, out, lse, counter, lse_batch, lse_head, scale, batch, heads, gqa_ratio, seq_q, seq_k, sweep,
    HEAD_DIM: gl.constexpr, ROWS: gl.constexpr, Q_TILES: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
    K_STAGES: gl.constexpr, S_STAGES: gl.constexpr, CAUSAL: gl.constexpr, EVEN_K: gl.constexpr, SHARED_OUT: gl.constexpr,
    Q_REGISTERS: gl.constexpr, LATE_WAIT: gl.constexpr, PING_PONG: gl.constexpr, DYNAMIC: gl.constexpr,
    REGISTERS: gl.constexpr,
):  # fmt: skip
    """Grid: as many blocks as fit the device, or as there are tickets.

    q, k, v, out: descriptors over [batch, head, token, width], blocks of ROWS (q, out) or KEYS (k, v) tokens
    lse: float32, its strides lse_batch, lse_head and 1; counter: where DYNAMIC, two int32 that are 0
    scale: softmax scale * log2(e), positive; REGISTERS: per thread of a consumer
    """
    traits = Traits(
        HEAD_DIM, ROWS, Q_TILES, KEYS, S_STAGES, CAUSAL, EVEN_K, SHARED_OUT, Q_REGISTERS, LATE_WAIT, PING_PONG, DYNAMIC
    )  # fmt: skip
    sizes = Sizes(heads, gqa_ratio, seq_q, seq_k, batch * heads, sweep)
    queries = ring_of(q, Q_TILES, 1)
    keys = ring_of(k, K_STAGES, Q_TILES)
    values = ring_of(v, STAGES, Q_TILES)
    notes = gl.allocate_shared_memory(gl.int32, [2, 1], mbarrier.MBarrierLayout())
    tickets = new_ring(notes, 2, Q_TILES)
    turns = gl.allocate_shared_memory(gl.int64, [Q_TILES, 1], mbarrier.MBarrierLayout())
    for tile in gl.static_range(Q_TILES):
        mbarrier.init(turns.index(tile), count=1)
    outs = queries.buffers
    if not SHARED_OUT:
        outs = gl.allocate_shared_memory(out.dtype, [Q_TILES] + out.block_shape, out.layout)  # noqa: RUF005  # Triton has no unpacking
    fence_async_shared()
    strides = (lse_batch, lse_head)
    FIRST: gl.constexpr = 0
    SECOND: gl.constexpr = 1
    THIRD: gl.constexpr = 2
    if Q_TILES == 1:
        gl.warp_specialize([
            (consume, (FIRST, queries, keys, values, outs, turns, tickets, out, lse, strides, scale, sizes, traits)),
            (produce, (q, k, v, queries, keys, values, tickets, counter, sizes, traits)),
        ], [1], [PRODUCER_REGISTERS])  # fmt: skip
    elif Q_TILES == 2:
        gl.warp_specialize([
            (consume, (FIRST, queries, keys, values, outs, turns, tickets, out, lse, strides, scale, sizes, traits)),
            (consume, (SECOND, queries, keys, values, outs, turns, tickets, out, lse, strides, scale, sizes, traits)),
            (produce, (q, k, v, queries, keys, values, tickets, counter, sizes, traits)),
        ], [4, 1], [REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume, (FIRST, queries, keys, values, outs, turns, tickets, out, lse, strides, scale, sizes, traits)),
            (consume, (SECOND, queries, keys, values, outs, turns, tickets, out, lse, strides, scale, sizes, traits)),
            (consume, (THIRD, queries, keys, values, outs, turns, tickets, out, lse, strides, scale, sizes, traits)),
            (produce, (q, k, v, queries, keys, values, tickets, counter, sizes, traits)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
