"""Stored numbers of 8 bits as float16, exactly.

A product wants two keys' numbers of one column side by side, and a cache has them a row apart; bytes are costly to bring
together one by one. So V may come as pairs of columns, 16 bits that the hardware transposes: every pair splits into an
even and an odd column, which are multiplied apart and put together in the result.

    e4m3   cvt of two bytes              e5m2   the upper byte of a float16              int8   0x6400 + (x + 128) - 1152
"""

import triton
import triton.language as tl


@triton.jit
def widened(tile, kind: tl.constexpr, HARDWARE: tl.constexpr):
    """A stored tile in the type of its product. HARDWARE: by instructions of sm_89 and later."""
    if HARDWARE and tile.dtype == tl.int8 and kind == tl.float16:
        wide = tl.inline_asm_elementwise(
            """{
            .reg .b32 shifted, low, high, bias;
            mov.b32 bias, 0x64806480;
            xor.b32 shifted, $2, 0x80808080;
            prmt.b32 low, shifted, 0x64646464, 0x4140;
            prmt.b32 high, shifted, 0x64646464, 0x4342;
            sub.f16x2 $0, low, bias;
            sub.f16x2 $1, high, bias;
            }""",
            "=r,=r,r", [tile], dtype=tl.float16, is_pure=True, pack=4,
        )
    else:
        wide = tile.to(kind)
    return wide


@triton.jit
def even_and_odd(pairs, FORMAT: tl.constexpr, HARDWARE: tl.constexpr):
    """float16 tiles of the lower and the upper bytes of uint16 `pairs`. HARDWARE: by instructions of sm_89 and later."""
    if FORMAT == "e5m2":
        even = (pairs << 8).to(tl.float16, bitcast=True)
        odd = (pairs & 0xFF00).to(tl.float16, bitcast=True)
    elif FORMAT == "e4m3" and HARDWARE:
        even, odd = tl.inline_asm_elementwise(
            """{
            .reg .b32 bytes;
            .reg .b16 low, high;
            prmt.b32 bytes, $2, 0, 0x3120;
            mov.b32 {low, high}, bytes;
            cvt.rn.f16x2.e4m3x2 $0, low;
            cvt.rn.f16x2.e4m3x2 $1, high;
            }""",
            "=r,=r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2,
        )
    elif FORMAT == "e4m3":
        even = (pairs & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
        odd = (pairs >> 8).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
    elif HARDWARE:
        even, odd = tl.inline_asm_elementwise(
            """{
            .reg .b32 shifted, low, high, bias;
            mov.b32 bias, 0x64806480;
            xor.b32 shifted, $2, 0x80808080;
            prmt.b32 low, shifted, 0x64646464, 0x4240;
            prmt.b32 high, shifted, 0x64646464, 0x4341;
            sub.f16x2 $0, low, bias;
            sub.f16x2 $1, high, bias;
            }""",
            "=r,=r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2,
        )
    else:
        even = (pairs & 0xFF).to(tl.int8, bitcast=False).to(tl.float16)
        odd = (pairs >> 8).to(tl.int8, bitcast=False).to(tl.float16)
    return even, odd


@triton.jit
def interleaved(even, odd, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """[ROWS, WIDTH] out of its even and odd columns."""
    return tl.join(even, odd).reshape(ROWS, WIDTH)
