"""What is fixed when the kernel is compiled, as one value to hand around."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.core import _aggregate as aggregate


@aggregate
class Traits:
    """Compile-time constants. Those that `hopper` has too mean the same.

    BLOCK        tokens that share a scale
    TWO_LEVEL    each step's product with V starts from zero and is added in float32; else it goes on in the unit, which
                 keeps about eleven bits of a sum
    PARTS        0: scores of a step beside the product of the one before; 1 or 2: one after the other, the product in so many
                 parts, where there are no registers for scores, output and product
    ANY_SCALE    whether scales may be any number; else those of scores are powers of two, q's with the softmax scale
    LATE_WAIT    whether that product may run until the weights behind it are known
    """

    HEAD_DIM: gl.constexpr
    ROWS: gl.constexpr
    Q_TILES: gl.constexpr
    KEYS: gl.constexpr
    BLOCK: gl.constexpr
    CAUSAL: gl.constexpr
    EVEN_K: gl.constexpr
    TWO_LEVEL: gl.constexpr
    Q_REGISTERS: gl.constexpr
    PING_PONG: gl.constexpr
    DYNAMIC: gl.constexpr
    PARTS: gl.constexpr
    LATE_WAIT: gl.constexpr
    ANY_SCALE: gl.constexpr

    @gluon.constexpr_function
    def __init__(
        self, HEAD_DIM, ROWS, Q_TILES, KEYS, BLOCK, CAUSAL, EVEN_K, TWO_LEVEL, Q_REGISTERS, PING_PONG, DYNAMIC,
        PARTS, LATE_WAIT, ANY_SCALE,
    ):  # fmt: skip
        self.HEAD_DIM = gl.constexpr(HEAD_DIM)
        self.ROWS = gl.constexpr(ROWS)
        self.Q_TILES = gl.constexpr(Q_TILES)
        self.KEYS = gl.constexpr(KEYS)
        self.BLOCK = gl.constexpr(BLOCK)
        self.CAUSAL = gl.constexpr(CAUSAL)
        self.EVEN_K = gl.constexpr(EVEN_K)
        self.TWO_LEVEL = gl.constexpr(TWO_LEVEL)
        self.Q_REGISTERS = gl.constexpr(Q_REGISTERS)
        self.PING_PONG = gl.constexpr(PING_PONG)
        self.DYNAMIC = gl.constexpr(DYNAMIC)
        self.PARTS = gl.constexpr(PARTS)
        self.LATE_WAIT = gl.constexpr(LATE_WAIT)
        self.ANY_SCALE = gl.constexpr(ANY_SCALE)

    @gluon.constexpr_function
    def scores_layout(self):
        """Registers of a tile of scores: one warpgroup, KEYS columns per product."""
        return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, self.KEYS.value, 32])

    @gluon.constexpr_function
    def out_layout(self):
        """Registers of a tile of the output, or of a part of its columns."""
        return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, self.columns(), 32])

    @gluon.constexpr_function
    def columns(self):
        """Columns of the output that one product computes."""
        return self.HEAD_DIM.value // max(self.PARTS.value, 1)
