"""The softmax scale, split between q and the kernel.

FlashInfer gives hidden keys, and the maximum of a row before its first key, the *unscaled* score -50000. Under a small
scale that is no number to hide behind, under a negative one it is the largest of all, and visible scores below it get no
weight. So q is multiplied by a power of two, which loses nothing in bfloat16 and next to nothing in float16, and what
is left for the kernel is a scale from 64 to 128: -50000 then means a score of at least -3.2 million.
"""

from __future__ import annotations

import math

LEAST = 64.0


def split_scale(scale: float) -> tuple[float, float]:
    """(what q is multiplied by, what the kernel multiplies by): their product is the scale, the second is positive."""
    if scale == 0:
        return 0.0, LEAST
    mantissa, exponent = math.frexp(abs(scale))
    factor = math.ldexp(1.0, exponent - 7)
    if factor >= 1.0:
        return math.copysign(1.0, scale), abs(scale)
    return math.copysign(factor, scale), mantissa * 2 * LEAST
