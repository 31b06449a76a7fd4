"""The kernel: softmax(scale q k^T) v for one call whose q, k and v are e4m3 with a scale for each head and 128 tokens.

One warp copies (producer.py), Q_TILES warpgroups compute (consumer.py), as in `hopper`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.language.extra.cuda import gdc_wait

from attn_backends.backends.fp8.hopper.kernel.consumer import consume
from attn_backends.backends.fp8.hopper.kernel.producer import produce
from attn_backends.backends.fp8.hopper.kernel.scales import Scales
from attn_backends.backends.fp8.hopper.kernel.traits import Traits
from attn_backends.backends.hopper.kernel.rings import new_ring, ring_of
from attn_backends.backends.hopper.kernel.traits import Sizes

PRODUCER_REGISTERS = gl.constexpr(24)
SIZES = [
    "lse_batch", "lse_head", "q_batch", "q_head", "q_block", "k_batch", "k_head", "k_block", "v_batch", "v_head", "v_block",
    "batch", "heads", "gqa_ratio", "seq_q", "seq_k", "sweep",
]  # fmt: skip


@gluon.jit(do_not_specialize=SIZES)
def attention_forward(
    q, k, v, out, lse, counter, q_scale, k_scale, v_scale, lse_batch, lse_head, q_batch, q_head, q_block,
    k_batch, k_head, k_block, v_batch, v_head, v_block, scale, batch, heads, gqa_ratio, seq_q, seq_k, sweep,
    HEAD_DIM: gl.constexpr, ROWS: gl.constexpr, Q_TILES: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
    BLOCK: gl.constexpr, CAUSAL: gl.constexpr, EVEN_K: gl.constexpr, TWO_LEVEL: gl.constexpr, Q_REGISTERS: gl.constexpr,
    PING_PONG: gl.constexpr, DYNAMIC: gl.constexpr, PARTS: gl.constexpr, LATE_WAIT: gl.constexpr, ANY_SCALE: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Launched as one that may begin before the kernel ahead of it has ended: it touches no tensor before `gdc_wait`.

    Grid: as many blocks as fit the device, or as there are tickets.

    q, k, out: descriptors over [batch, head, token, width], blocks of ROWS (q, out) or KEYS (k) tokens
    v: a descriptor over [batch, head, width, token], blocks of KEYS tokens, renamed as products.operand says
    q_scale, k_scale, v_scale: float32, their strides by batch entry, head and block behind them
    lse: float32, its strides lse_batch, lse_head and 1; counter: where DYNAMIC, two int32 that are 0
    scale: softmax scale * log2(e), positive; REGISTERS: per thread of a consumer
    """
    traits = Traits(
        HEAD_DIM,
        ROWS,
        Q_TILES,
        KEYS,
        BLOCK,
        CAUSAL,
        EVEN_K,
        TWO_LEVEL,
        Q_REGISTERS,
        PING_PONG,
        DYNAMIC,
        PARTS,
        LATE_WAIT,
        ANY_SCALE,
    )
    sizes = Sizes(heads, gqa_ratio, seq_q, seq_k, batch * heads, sweep)
    queries = ring_of(q, Q_TILES, 1)
    keys = ring_of(k, STAGES, Q_TILES)
    values = ring_of(v, STAGES, Q_TILES)
    notes = gl.allocate_shared_memory(gl.int32, [2, 1], mbarrier.MBarrierLayout())
    tickets = new_ring(notes, 2, Q_TILES)
    turns = gl.allocate_shared_memory(gl.int64, [Q_TILES, 1], mbarrier.MBarrierLayout())
    for tile in gl.static_range(Q_TILES):
        mbarrier.init(turns.index(tile), count=1)
    outs = gl.allocate_shared_memory(out.dtype, [Q_TILES * (2 if PARTS == 2 else 1)] + out.block_shape, out.layout)  # noqa: RUF005  # Triton has no unpacking
    fence_async_shared()
    lse_strides = (lse_batch, lse_head)
    q_scales = Scales(q_scale, q_batch, q_head, q_block)
    k_scales = Scales(k_scale, k_batch, k_head, k_block)
    v_scales = Scales(v_scale, v_batch, v_head, v_block)
    gdc_wait()
    FIRST: gl.constexpr = 0
    SECOND: gl.constexpr = 1
    THIRD: gl.constexpr = 2
    if Q_TILES == 2:
        gl.warp_specialize([
            (consume, (FIRST, queries, keys, values, outs, turns, tickets, out, lse, lse_strides, q_scales, k_scales, v_scales, scale, sizes, traits)),
            (consume, (SECOND, queries, keys, values, outs, turns, tickets, out, lse, lse_strides, q_scales, k_scales, v_scales, scale, sizes, traits)),
            (produce, (q, k, v, queries, keys, values, tickets, counter, sizes, traits)),
        ], [4, 1], [REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
    else:
        gl.static_assert(Q_TILES == 3)
        gl.warp_specialize([
            (consume, (FIRST, queries, keys, values, outs, turns, tickets, out, lse, lse_strides, q_scales, k_scales, v_scales, scale, sizes, traits)),
            (consume, (SECOND, queries, keys, values, outs, turns, tickets, out, lse, lse_strides, q_scales, k_scales, v_scales, scale, sizes, traits)),
            (consume, (THIRD, queries, keys, values, outs, turns, tickets, out, lse, lse_strides, q_scales, k_scales, v_scales, scale, sizes, traits)),
            (produce, (q, k, v, queries, keys, values, tickets, counter, sizes, traits)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
