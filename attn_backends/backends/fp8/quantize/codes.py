"""A block of numbers as e4m3 and one scale, in registers: `quantize_tile` is what any kernel may call on its own tile.

    scale = max|x| / 448          1 for a block of zeros, and never so small or large that products of scales overflow
    code  = e4m3(x * (1 / scale))   to nearest even, at most 448

The pass rounds the scales of Q and K up to powers of two (`power_of`), which costs no digit but of numbers 2^-14 of the largest
and smaller: scores are then scaled without rounding, however large they are.

A NaN becomes the code of NaN and leaves the scale alone. An infinite number becomes NaN, and the
rest of its block 0.
"""

import triton
import triton.language as tl

LARGEST: tl.constexpr = tl.constexpr(448.0)  # number of e4m3
# The scale of any block: of Q and K 2^-60 to 2^50, whose product and ratio are float32s; of V 2^-24 to 2^66, whose ratio is at
# most 2^90. Larger numbers than 448 times the largest become it; smaller ones than the least keep fewer digits.
LEAST_SCORE_SCALE: tl.constexpr = tl.constexpr(2.0**-60)
LARGEST_SCORE_SCALE: tl.constexpr = tl.constexpr(2.0**50)
LEAST_VALUE_SCALE: tl.constexpr = tl.constexpr(2.0**-24)
LARGEST_VALUE_SCALE: tl.constexpr = tl.constexpr(2.0**66)
_ROUNDER: tl.constexpr = tl.constexpr(12582912.0)  # x + this - this: x rounded to a whole number, |x| < 2^22


@triton.jit
def quantize_tile(
    values, LARGEST_SCALE: tl.constexpr = LARGEST_VALUE_SCALE, LEAST_SCALE: tl.constexpr = LEAST_VALUE_SCALE,
    NATIVE: tl.constexpr = True,
):
    """(e4m3 codes, float32 scale) of a float32 tile that is one whole block of a head: values = codes * scale.

    The epilogue of a projection calls it on 128 tokens of one head, all of its width; numbers that are not there are 0.
    LARGEST_SCALE, LEAST_SCALE: LARGEST_SCORE_SCALE and LEAST_SCORE_SCALE for Q and K, whose scales are no powers of two here, so that
    `Operands` made of them have no softmax_scale. NATIVE: the GPU casts to e4m3, sm_89 and later.
    """
    largest = tl.max(tl.abs(values))
    scale = scale_of(largest, LARGEST_SCALE, LEAST_SCALE)
    return codes_of(values * reciprocal_of(scale, largest), NATIVE), scale


@triton.jit
def largest_of(x0, x1, x2, x3, NATIVE: tl.constexpr):
    """The largest size of a number in four tiles of one shape, float32; NaN does not count.

    Numbers of 16 bits are compared two at a time, and widened when only one tile of them is left: no registers are held by
    their float32s before a scale is known.
    """
    if NATIVE and x0.dtype.primitive_bitwidth == 16:
        KIND: tl.constexpr = "bf16x2" if x0.dtype == tl.bfloat16 else "f16x2"
        larger = tl.inline_asm_elementwise(
            largest_pairs(KIND), "=r,r,r,r,r", [x0, x1, x2, x3], dtype=x0.dtype, is_pure=True, pack=2
        ).to(tl.float32)
    else:
        low = tl.maximum(tl.abs(x0.to(tl.float32)), tl.abs(x1.to(tl.float32)))
        larger = tl.maximum(low, tl.maximum(tl.abs(x2.to(tl.float32)), tl.abs(x3.to(tl.float32))))
    return tl.max(larger)


@triton.constexpr_function
def largest_pairs(kind: str) -> str:
    """PTX: $0 is the larger of |$1| .. |$4|, for both numbers of a register."""
    sizes = "".join(f"abs.{kind} x{place}, ${place + 1}; " for place in range(4))
    return (
        "{ .reg .b32 x0, x1, x2, x3; " + sizes
        + f"max.{kind} x0, x0, x1; max.{kind} x2, x2, x3; max.{kind} $0, x0, x2; }}"
    )  # fmt: skip


@triton.jit
def scale_of(largest, LARGEST_SCALE: tl.constexpr, LEAST_SCALE: tl.constexpr):
    """The scale of a block whose largest number is `largest`."""
    scale = tl.minimum(tl.maximum(tl.div_rn(largest, LARGEST), LEAST_SCALE), LARGEST_SCALE)
    return tl.where(largest == 0.0, 1.0, scale)


@triton.jit
def power_of(largest):
    """The scale of a block as a power of two: the least by which its largest number is at most 448; 1 for zeros."""
    bits = tl.div_rn(largest, LARGEST).to(tl.int32, bitcast=True)
    power = ((bits + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)
    power = tl.minimum(tl.maximum(power, LEAST_SCORE_SCALE), LARGEST_SCORE_SCALE)
    return tl.where(largest == 0.0, 1.0, power)


@triton.jit
def reciprocal_of(scale, largest):
    """What numbers are multiplied by; 0 where one is infinite, so that it becomes NaN."""
    return tl.where(largest == float("inf"), 0.0, tl.div_rn(1.0, scale))


@triton.jit
def codes_of(scaled, NATIVE: tl.constexpr):
    """e4m3 of float32 numbers, clamped. Natively by an instruction for two, which saturates.

    Not by Triton's own cast, which goes through float16 on sm_89 and rounds twice.
    """
    if NATIVE:
        codes = tl.inline_asm_elementwise(
            "cvt.rn.satfinite.e4m3x2.f32 $0, $2, $1;", "=h,r,r", [scaled], dtype=tl.float8e4nv, is_pure=True, pack=2
        )
    else:
        codes = byte_of(scaled).to(tl.float8e4nv, bitcast=True)
    return codes


@triton.jit
def word_of(x0, x1, x2, x3, NATIVE: tl.constexpr):
    """uint32: the codes of four tiles' numbers, the first one's lowest."""
    if NATIVE:
        word = tl.inline_asm_elementwise(
            """{
            .reg .b16 low, high;
            cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
            cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
            mov.b32 $0, {low, high};
            }""",
            "=r,r,r,r,r", [x0, x1, x2, x3], dtype=tl.uint32, is_pure=True, pack=1,
        )
    else:
        word = joined(byte_of(x0), byte_of(x1), byte_of(x2), byte_of(x3))
    return word


@triton.jit
def joined(b0, b1, b2, b3):
    """uint32: four bytes, the first one lowest."""
    return b0.to(tl.uint32) | (b1.to(tl.uint32) << 8) | (b2.to(tl.uint32) << 16) | (b3.to(tl.uint32) << 24)


@triton.jit
def byte_of(values):
    """The clamped code put together by hand: Triton's interpreter truncates in its cast."""
    clamped = tl.where(values > LARGEST, LARGEST, tl.where(values < -LARGEST, -LARGEST, values))
    size = tl.abs(clamped)
    exponent = tl.maximum((size.to(tl.int32, bitcast=True) >> 23) - 127, -6)
    step = ((exponent - 3 + 127) << 23).to(tl.float32, bitcast=True)
    steps = ((tl.div_rn(size, step) + _ROUNDER) - _ROUNDER).to(tl.int32)  # 16 at most, which is 8 of the next size
    code = tl.where(values != values, 0x7F, ((exponent + 6) << 3) + steps)  # noqa: PLR0124  # NaN
    return (code | ((values.to(tl.int32, bitcast=True) >> 24) & 0x80)).to(tl.uint8)
