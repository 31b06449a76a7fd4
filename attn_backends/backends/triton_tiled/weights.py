"""exp2 of capped scores, in part by a cubic: the softcap's tanh has taken half of what the unit for exponentials can do.

A multiprocessor makes 16 results a clock for exp2 and tanh together, and 128 products or sums. So of every eight weights some
come from the unit, and the others from

    n = round(y),  f = y - n in [-1/2, 1/2],  2^y = 2^n (c0 + c1 f + c2 f^2 + c3 f^3)

with the c of least relative error, 7.5e-5, a fiftieth of what rounding a weight to bfloat16 makes. Adding 1.5 * 2^23 to y leaves n
in the last digits; shifted, they are added to the exponent. That wants -126 < y < 126, which the bound of `scores.bound_of` is for,
and turns NaN into 2^128, nearly: `undone` makes it NaN again, once a row.
"""

import triton
import triton.language as tl

PACK: tl.constexpr = tl.constexpr(8)  # weights at a time
ROUNDING: tl.constexpr = tl.constexpr(12582912.0)  # 1.5 * 2^23
CONSTRAINTS: tl.constexpr = tl.constexpr(",".join(["=f"] * 8 + ["f"] * 32))
IMPOSSIBLE: tl.constexpr = tl.constexpr(2.0**126)  # a sum of weights below 2^50, as many as there are keys

_COEFFICIENTS = ("0f3D61FBB0", "0f3E786F0D", "0f3F31798D", "0f3F7FFB49")  # c3 .. c0


@triton.constexpr_function
def mixed(cubics: int) -> str:
    """PTX for eight weights, so many of them cubics: $0-$7 from x $8-$15, the factor $16-$23, minus the bound $24-$31, rounding minus the bound $32-$39."""
    lines = [f".reg .b32 {', '.join(f'{name}{place}' for name in 'nfw' for place in range(8))};"]
    for place in range(8):
        x, factor, less, rounding = (f"${8 * operand + place}" for operand in range(1, 5))
        n, f, w = f"n{place}", f"f{place}", f"w{place}"
        if place * cubics % 8 < cubics:
            c3, c2, c1, c0 = _COEFFICIENTS
            lines += [
                f"fma.rn.f32 {n}, {x}, {factor}, {rounding};",
                f"sub.rn.f32 {f}, {rounding}, {n};",
                f"fma.rn.f32 {f}, {x}, {factor}, {f};",
                f"fma.rn.f32 {w}, {f}, {c3}, {c2};",
                f"fma.rn.f32 {w}, {w}, {f}, {c1};",
                f"fma.rn.f32 {w}, {w}, {f}, {c0};",
                f"shl.b32 {n}, {n}, 23;",
                f"add.s32 {w}, {w}, {n};",
            ]
        else:
            lines += [f"fma.rn.f32 {f}, {x}, {factor}, {less};", f"ex2.approx.ftz.f32 {w}, {f};"]
    lines += [f"mov.b32 ${place}, w{place};" for place in range(8)]
    return "{ " + " ".join(lines) + " }"


@triton.jit
def capped_weights(x, factor, bound, CUBICS: tl.constexpr):
    """exp2(x * factor - bound) of numbers -1 <= x <= 1; factor and bound are scalars, the bound a whole number.

    CUBICS: of eight weights, by the polynomial; 0 = none, and any backend of Triton.
    """
    if CUBICS > 0:
        weights = tl.inline_asm_elementwise(
            mixed(CUBICS), CONSTRAINTS, [x, factor, -bound, ROUNDING - bound], dtype=tl.float32, is_pure=True, pack=PACK
        )
    else:
        weights = tl.exp2(x * factor - bound)
    return weights


@triton.jit
def undone(total, CUBICS: tl.constexpr):
    """Sums of weights, NaN where one of them was."""
    return tl.where(total > IMPOSSIBLE, float("nan"), total) if CUBICS > 0 else total
