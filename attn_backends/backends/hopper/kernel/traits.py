"""What is fixed when the kernel is compiled, and the sizes of one call, each as one value to hand around."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.core import _aggregate as aggregate


@aggregate
class Traits:
    """Compile-time constants.

    HEAD_DIM       width of q, k and v
    ROWS           queries per query tile: what one warpgroup multiplies at once
    Q_TILES        query tiles per block of threads, a warpgroup each
    KEYS           keys per step
    S_STAGES       1: scores, weights, product of a step one after the other; 2: the next scores are computed meanwhile
    CAUSAL         whether the diagonal hides keys
    EVEN_K         whether the keys fill their tiles
    SHARED_OUT     whether the output leaves through Q's memory, for want of room of its own
    Q_REGISTERS    whether a warpgroup keeps its queries in registers
    LATE_WAIT      whether the product with V may run until the weights behind it are known
    PING_PONG      whether the warpgroups take turns to issue products
    DYNAMIC        whether blocks draw their query tiles from a counter
    """

    HEAD_DIM: gl.constexpr
    ROWS: gl.constexpr
    Q_TILES: gl.constexpr
    KEYS: gl.constexpr
    S_STAGES: gl.constexpr
    CAUSAL: gl.constexpr
    EVEN_K: gl.constexpr
    SHARED_OUT: gl.constexpr
    Q_REGISTERS: gl.constexpr
    LATE_WAIT: gl.constexpr
    PING_PONG: gl.constexpr
    DYNAMIC: gl.constexpr

    @gluon.constexpr_function
    def __init__(
        self, HEAD_DIM, ROWS, Q_TILES, KEYS, S_STAGES, CAUSAL, EVEN_K, SHARED_OUT, Q_REGISTERS, LATE_WAIT, PING_PONG,
        DYNAMIC,
    ):  # fmt: skip
        self.HEAD_DIM = gl.constexpr(HEAD_DIM)
        self.ROWS = gl.constexpr(ROWS)
        self.Q_TILES = gl.constexpr(Q_TILES)
        self.KEYS = gl.constexpr(KEYS)
        self.S_STAGES = gl.constexpr(S_STAGES)
        self.CAUSAL = gl.constexpr(CAUSAL)
        self.EVEN_K = gl.constexpr(EVEN_K)
        self.SHARED_OUT = gl.constexpr(SHARED_OUT)
        self.Q_REGISTERS = gl.constexpr(Q_REGISTERS)
        self.LATE_WAIT = gl.constexpr(LATE_WAIT)
        self.PING_PONG = gl.constexpr(PING_PONG)
        self.DYNAMIC = gl.constexpr(DYNAMIC)

    @gluon.constexpr_function
    def scores_layout(self):
        """Registers of a tile of scores: one warpgroup, KEYS columns per product."""
        return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, self.KEYS.value, 16])

    @gluon.constexpr_function
    def out_layout(self):
        """Registers of a tile of the output."""
        return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, self.HEAD_DIM.value, 16])


@aggregate
class Sizes:
    """Heads of q, query heads per KV head, queries and keys of a sequence; batch * heads; heads to work on at a time."""

    heads: gl.tensor
    gqa_ratio: gl.tensor
    seq_q: gl.tensor
    seq_k: gl.tensor
    sequences: gl.tensor
    sweep: gl.tensor

    @gluon.constexpr_function
    def __init__(self, heads, gqa_ratio, seq_q, seq_k, sequences, sweep):
        self.heads = heads
        self.gqa_ratio = gqa_ratio
        self.seq_q = seq_q
        self.seq_k = seq_k
        self.sequences = sequences
        self.sweep = sweep
