"""The kernel behind `append_kv`: one program stores some heads of one token, of K or of V, quantised on the way.

    scale = max|x| / most      per token and head, 1 for a head of zeros; else what is given
    code  = cast(clamp(x / scale))

Everything is done as `append_kv` does it in torch, to the bit: divisions are rounded to nearest, NaN passes a clamp. Numbers
of 8 bits are put together here, because casts to them differ between architectures, and are wrong in Triton's interpreter.
A slot outside the cache is skipped, so that no slot makes the kernel write elsewhere.
"""

import triton
import triton.language as tl

# x + this - this is x rounded to a whole number, half to even, for |x| < 2^22.
ROUNDER: tl.constexpr = tl.constexpr(12582912.0)


@triton.jit
def scales_of_heads(values, most):
    """float32 [heads]: the scale under which each head's largest number is the largest code; NaN where a number is."""
    largest = tl.div_rn(tl.max(tl.abs(values), 1), most)
    unknown = tl.max((values != values).to(tl.int32), 1) > 0
    return tl.where(unknown, float("nan"), tl.where(largest == 0.0, 1.0, largest))


@triton.jit
def rounded(values, MANTISSA: tl.constexpr, LEAST_EXPONENT: tl.constexpr):
    """float32 numbers at so many bits behind the leading one, half to even; below 2^LEAST_EXPONENT at the last of its bits."""
    bits = values.to(tl.int32, bitcast=True)
    exponent = tl.maximum(((bits >> 23) & 0xFF) - 127, LEAST_EXPONENT) - MANTISSA
    step = ((exponent + 127) << 23).to(tl.float32, bitcast=True)
    steps_in_one = ((127 - exponent) << 23).to(tl.float32, bitcast=True)
    nearest = ((values * steps_in_one + ROUNDER) - ROUNDER) * step
    signed = (nearest.to(tl.int32, bitcast=True) & 0x7FFFFFFF) | (bits & -0x80000000)
    return tl.where(values != values, values, signed.to(tl.float32, bitcast=True))


@triton.jit
def byte_of(values, MANTISSA: tl.constexpr, LEAST_EXPONENT: tl.constexpr):
    """uint8: sign, exponent, MANTISSA bits, of float32 numbers that these hold exactly; NaN is all ones below its sign."""
    bits = values.to(tl.int32, bitcast=True)
    unknown = values != values
    size = tl.where(unknown, 0.0, tl.abs(values))
    normal = ((bits & 0x7FFFFFFF) >> (23 - MANTISSA)) - ((126 + LEAST_EXPONENT) << MANTISSA)
    last_bit: tl.constexpr = 2.0 ** (MANTISSA - LEAST_EXPONENT)
    small = (size * last_bit).to(tl.int32)
    code = tl.where(size < 2.0**LEAST_EXPONENT, small, normal)
    code = tl.where(unknown, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def codes_of(values, scales, least, most, FORMAT: tl.constexpr):
    """What is stored of float32 numbers: int8, where NaN is 0, or the bytes of e4m3 or e5m2."""
    scaled = tl.div_rn(values, scales)
    scaled = tl.where(scaled < least, least, tl.where(scaled > most, most, scaled))
    if FORMAT == "int8":
        codes = tl.where(scaled != scaled, 0.0, (scaled + ROUNDER) - ROUNDER).to(tl.int8)
    elif FORMAT == "e5m2":
        codes = byte_of(rounded(scaled, 2, -14), 2, -14)
    else:
        codes = byte_of(rounded(scaled, 3, -6), 3, -6)
    return codes


@triton.jit
def write_heads(
    rows,
    cache,
    descale,
    row_strides,
    cache_strides,
    scale_strides,
    token,
    page,
    cell,
    first_head,
    heads,
    width,
    least,
    most,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SCALE: tl.constexpr,
    FORMAT: tl.constexpr,
):
    """One tile [BLOCK_H, BLOCK_D] of one tensor. Strides are (token, head, width) and (page, cell, head, width).

    FORMAT: int8, e4m3 or e5m2 (as bytes); dense = the cache's own.
    SCALE: none, head, channel, or token, under which the scale is worked out and stored as well.
    """
    lanes = first_head + tl.arange(0, BLOCK_H)
    columns = tl.arange(0, BLOCK_D)
    is_head = lanes < heads
    inside = is_head[:, None] & (columns < width)[None, :]
    steps, places = lanes.to(tl.int64), columns.to(tl.int64)
    source = rows + token * row_strides[0] + steps[:, None] * row_strides[1] + places[None, :] * row_strides[2]
    values = tl.load(source, mask=inside, other=0.0)
    if SCALE == "none":
        codes = values.to(cache.dtype.element_ty)
    else:
        values = values.to(tl.float32)
        if SCALE == "token":
            scales = scales_of_heads(values, most)
            kept = descale + page * scale_strides[0] + cell * scale_strides[1] + steps * scale_strides[2]
            tl.store(kept, scales, mask=is_head)
            scales = scales[:, None]
        elif SCALE == "head":
            scales = tl.load(descale + steps * scale_strides[0], mask=is_head, other=1.0)[:, None]
        else:
            given = descale + steps[:, None] * scale_strides[0] + places[None, :] * scale_strides[1]
            scales = tl.load(given, mask=inside, other=1.0)
        codes = codes_of(values, scales + tl.zeros_like(values), least, most, FORMAT)
    target = cache + page * cache_strides[0] + cell * cache_strides[1]
    target = target + steps[:, None] * cache_strides[2] + places[None, :] * cache_strides[3]
    tl.store(target, codes, mask=inside)


@triton.jit(do_not_specialize=("page_size", "cells", "heads"))
def write_tokens(
    k,
    v,
    k_cache,
    v_cache,
    k_descale,
    v_descale,
    slots,
    k_strides,
    v_strides,
    k_cache_strides,
    v_cache_strides,
    k_scale_strides,
    v_scale_strides,
    slot_step,
    page_size,
    cells,
    heads,
    width,
    width_v,
    k_least,
    k_most,
    v_least,
    v_most,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    K_SCALE: tl.constexpr,
    V_SCALE: tl.constexpr,
    K_FORMAT: tl.constexpr,
    V_FORMAT: tl.constexpr,
):
    """Grid: (tokens, blocks of heads, K or V)."""
    token = tl.program_id(0).to(tl.int64)
    first_head = tl.program_id(1) * BLOCK_H
    slot = tl.load(slots + token * slot_step)
    if slot < 0:
        return
    if slot >= cells:
        return
    page, cell = slot // page_size, slot % page_size
    if tl.program_id(2) == 0:
        write_heads(
            k,
            k_cache,
            k_descale,
            k_strides,
            k_cache_strides,
            k_scale_strides,
            token,
            page,
            cell,
            first_head,
            heads,
            width,
            k_least,
            k_most,
            BLOCK_H,
            BLOCK_D,
            K_SCALE,
            K_FORMAT,
        )
    else:
        write_heads(
            v,
            v_cache,
            v_descale,
            v_strides,
            v_cache_strides,
            v_scale_strides,
            token,
            page,
            cell,
            first_head,
            heads,
            width_v,
            v_least,
            v_most,
            BLOCK_H,
            BLOCK_DV,
            V_SCALE,
            V_FORMAT,
        )
