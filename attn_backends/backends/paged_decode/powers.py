"""Powers of two, and signs, that keep what is multiplied within its type's range."""

import triton
import triton.language as tl

LEAST_SCALE: tl.constexpr = tl.constexpr(1.2e-38)  # of float32's normal numbers


@triton.jit
def sign_and_size(scale):
    """1 or -1 and a number >= 0, which are the scale together; NaN and 1 for one that is NaN."""
    known = tl.abs(scale) >= 0.0
    return tl.where(known, tl.where(scale < 0.0, -1.0, 1.0), scale), tl.where(known, tl.abs(scale), 1.0)


@triton.jit
def exponent_of(largest):
    """What a row's numbers are divided by, as a power of two, so that its largest one is from 1 to 2."""
    return tl.maximum(tl.floor(tl.log2(tl.where(largest > 0.0, largest, 1.0))), -100.0)


@triton.jit
def normalised(values, exponent):
    """float16 rows whose largest number is from 2^14 to 2^15, from float32 rows."""
    return (values * tl.exp2(14.0 - exponent)[:, None]).to(tl.float16)


@triton.jit
def steps_to_unit(scale):
    """Two powers of two whose product brings a number >= 0 to between 1 and 2; each alone is a normal number."""
    exponent = tl.floor(tl.log2(tl.where(scale > 0.0, scale * 4294967296.0, 4294967296.0))) - 32.0
    half = tl.floor(exponent * 0.5)
    return tl.exp2(-half), tl.exp2(half - exponent)


@triton.jit
def level_of(scales):
    """log2 |scales| to within 0.09 below, at least -60: a reference that keeps weights times their scales below 2."""
    bits = scales.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.maximum(bits.to(tl.float32) * 1.1920928955078125e-07 - 127.0, -60.0)
