"""The matrix that spreads an outlying channel over all of them and leaves scores as they are.

    x -> (x * signs) H / sqrt(D),   H the Hadamard matrix: H[i, j] = (-1)^popcount(i & j)

Q and K are rotated alike, and the rotation is orthogonal: (q R)(k R)^T = q k^T. A matrix has 64 or 128 rows; wider
heads are two or four parts that share it, put together by butterflies. Its entries are +-2^-8 and not +-1 / sqrt(D): no
sum of finite bfloat16 numbers overflows, every product is exact, and the scale takes the rest.
"""

import triton
import triton.language as tl

ENTRY: tl.constexpr = tl.constexpr(2.0**-8)
WORD_0: tl.constexpr = tl.constexpr(0x2B7E1516)  # the signs: bits of 128 channels
WORD_1: tl.constexpr = tl.constexpr(0x7A4F9D3C)
WORD_2: tl.constexpr = tl.constexpr(0x53C6E0B9)
WORD_3: tl.constexpr = tl.constexpr(0x1D8A76F5)


@triton.jit
def rotation(SIZE: tl.constexpr, kind: tl.constexpr):
    """[SIZE, SIZE] of a 16-bit or 32-bit float type: row i is row i of H times the sign of channel i and ENTRY.

    Put together from H of 8 and of SIZE / 8, of which each thread needs little.
    """
    LOW: tl.constexpr = SIZE // 8
    high = tl.arange(0, 8)
    low = tl.arange(0, LOW)
    sign = sign_of(high[:, None] * LOW + low[None, :])
    odd = parity(high[:, None] & high[None, :])[:, None, :, None] ^ parity(low[:, None] & low[None, :])[None, :, None, :]
    odd = odd ^ sign[:, :, None, None]
    return tl.where(odd != 0, -ENTRY, ENTRY).to(kind).reshape(SIZE, SIZE)


@triton.jit
def parity(bits):
    """0 or 1: of four bits."""
    bits = bits ^ (bits >> 2)
    return (bits ^ (bits >> 1)) & 1


@triton.jit
def sign_of(channel):
    """0 or 1: a bit of four words that were drawn once. A thread knows most bits of its channels when it is compiled."""
    word = tl.where(channel < 64, tl.where(channel < 32, WORD_0, WORD_1), tl.where(channel < 96, WORD_2, WORD_3))
    return (word >> (channel & 31)) & 1


@triton.jit
def in_register_order(tile, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """Columns 8 n + 2 t + e of a product [ROWS, SIZE] as columns (SIZE / 4) t + 2 n + e.

    A thread of a matrix unit holds the columns of one t: here they lie side by side, and are stored without an exchange.
    Scores do not mind, as Q and K have one order.
    """
    return tile.reshape(ROWS, SIZE // 8, 4, 2).permute(0, 2, 1, 3).reshape(ROWS, SIZE)
