"""Numbers inside the kernel: 16-bit storage to float32, powers of two, tanh; all of it vectorises.

float16 and bfloat16 arrive as uint16, which is how numba can hold them. Comparisons keep NaN: a NaN stays one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from attn_backends.backends.numba_cpu.flags import FAST

LOG2E = np.float32(1.4426950408889634)
LEAST_EXPONENT = np.float32(-126.0)
ZERO, HALF, ONE, TWO = np.float32(0.0), np.float32(0.5), np.float32(1.0), np.float32(2.0)


@intrinsic
def bits_as_float(_context: Any, bits: Any) -> Any:
    """The float32 with these 32 bits (int32)."""

    def build(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.bitcast(given[0], ir.FloatType())

    return types.float32(types.int32), build


@intrinsic
def half_as_float(_context: Any, bits: Any) -> Any:
    """The float32 of a float16 with these 16 bits (uint16), subnormal numbers included."""

    def build(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        triple, _, features = context.codegen().magic_tuple()
        if triple.startswith(("x86", "i686")) and "+f16c" not in features:
            return _half_by_arithmetic(builder, given[0])
        return builder.fpext(builder.bitcast(given[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), build


def _half_by_arithmetic(builder: Any, bits: Any) -> Any:
    """For processors that have no instruction for it, virtual ones among them: llvm would call a function that is not there.

    Exponent and fraction in float32's places, times 2^112, the difference of the two exponents' origins.
    """
    whole, single = ir.IntType(32), ir.FloatType()
    wide = builder.zext(bits, whole)
    size = builder.shl(builder.and_(wide, whole(0x7FFF)), whole(13))
    finite = builder.bitcast(builder.fmul(builder.bitcast(size, single), single(2.0**112)), whole)
    far = builder.icmp_unsigned(">=", size, whole(0x1F << 23))  # inf and NaN
    moved = builder.select(far, builder.or_(size, whole(0xFF << 23)), finite)
    sign = builder.shl(builder.and_(wide, whole(0x8000)), whole(16))
    return builder.bitcast(builder.or_(moved, sign), single)


@intrinsic
def float_at(_context: Any, _address: Any, _index: Any) -> Any:
    """The float32 `index` places behind an address (uintp): a loop over it is known to read one after the other."""

    def build(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return _read(builder, given, ir.FloatType())

    return types.float32(types.uintp, types.uintp), build


@intrinsic
def bits_at(_context: Any, _address: Any, _index: Any) -> Any:
    """The uint16 `index` places behind an address (uintp)."""

    def build(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return _read(builder, given, ir.IntType(16))

    return types.uint16(types.uintp, types.uintp), build


def _read(builder: Any, given: Any, kind: Any) -> Any:
    address, index = given
    made = builder.load(builder.gep(builder.inttoptr(address, kind.as_pointer()), [index]))
    made.align = kind.width // 8 if isinstance(kind, ir.IntType) else 4
    return made


@njit(inline="always", fastmath=FAST)
def exp2(x: Any) -> Any:
    """2^x for x <= 0 or a little above, relative error 2e-7; 0 below -126, where -inf lies; NaN of NaN.

    2^n p(f) with n = floor(x + 1/2), f = x - n and the Taylor polynomial of 2^f, whose seventh term is below 1.3e-7.
    """
    n = np.floor(x + HALF)
    f = x - n
    p = np.float32(1.5403530e-4)
    p = p * f + np.float32(1.3333558e-3)
    p = p * f + np.float32(9.6181291e-3)
    p = p * f + np.float32(5.5504109e-2)
    p = p * f + np.float32(2.4022651e-1)
    p = p * f + np.float32(6.9314718e-1)
    p = p * f + ONE
    power = p * bits_as_float((np.int32(n) + np.int32(127)) << np.int32(23))
    return ZERO if x < LEAST_EXPONENT else power


@njit(inline="always", fastmath=FAST)
def tanh(x: Any) -> Any:
    """tanh by one power of a number <= 0; by its series where that would cancel."""
    e = exp2(abs(x) * (-TWO * LOG2E))
    size = (ONE - e) / (ONE + e)
    square = x * x
    series = x * (ONE - square * (np.float32(1 / 3) - np.float32(2 / 15) * square))
    if abs(x) < np.float32(0.04):
        return series
    return -size if x < ZERO else size
