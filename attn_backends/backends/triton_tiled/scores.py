"""From products q.k to scores, and back: scale, softcap, float mask, ALiBi, and what a row may not see.

    x = scale * q.k;  x = cap * tanh(x / cap);  score = x + bias - slope * |distance|, -inf where hidden

`distance` is the key's position minus the query's own, on the diagonal that causal and windows share. Positions come
as tiles that broadcast against each other (a row of keys and a column of queries, or the other way round), so the same
functions serve score tiles [queries, keys] and transposed ones [keys, queries].
"""

import triton
import triton.language as tl

from attn_backends.backends.triton_tiled.present import INNER

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
MINUS_INF: tl.constexpr = tl.constexpr(float("-inf"))
HIDDEN: tl.constexpr = tl.constexpr(-2147483648)  # the bits of -0.0; of a number that is 0 Triton makes +0.0


@triton.jit
def tanh(x, FAST: tl.constexpr):
    """tanh; FAST: the hardware's, relative error 2^-11, enough below 16-bit weights.

    Else by one exponential of a number <= 0, so that nothing overflows; by a series where that would cancel.
    """
    if FAST:
        value = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        e = tl.exp2(tl.abs(x) * (-2.0 * LOG2E))
        magnitude = (1.0 - e) / (1.0 + e)
        series = x * (1.0 - x * x * (0.3333333333 - 0.1333333333 * x * x))
        value = tl.where(tl.abs(x) < 0.04, series, tl.where(x < 0, -magnitude, magnitude))
    return value


@triton.jit
def band_tile(
    queries, keys, seq_q, seq_k, offset, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr, BY_KEY: tl.constexpr
):
    """bool: inside the sequence and inside the band around the diagonal.

    One comparison a score with what is worked out once a row, two in a band with two edges; rows are queries, or BY_KEY.
    """
    if BY_KEY:
        end = seq_q + tl.zeros_like(keys)
        if LEFT:
            end = tl.minimum(end, keys + (left + 1 - offset))
        visible = queries < tl.where(keys < seq_k, end, 0)
        if RIGHT:
            visible = visible & (queries >= keys - (offset + right))
    else:
        end = seq_k + tl.zeros_like(queries)
        if RIGHT:
            end = tl.minimum(end, queries + (offset + right + 1))
        visible = keys < tl.where(queries < seq_q, end, 0)
        if LEFT:
            visible = visible & (keys >= queries + (offset - left))
    return visible


@triton.jit
def dense_tile(mask, strides, batch, head, queries, keys, seq_q, seq_k, OTHER: tl.constexpr):
    """A tile of a tensor [batch, head, query, key] with broadcast strides; `OTHER` outside the sequence."""
    row = mask + batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]
    at = queries.to(tl.int64) * strides[2] + keys.to(tl.int64) * strides[3]
    return tl.load(row + at, mask=(queries < seq_q) & (keys < seq_k), other=OTHER)


@triton.jit
def masked_tile(
    mask, mask_strides, blocks, block_strides, inner, inner_strides, block_sizes, batch, head, queries, keys, seq_q, seq_k,
    present, BOOL_MASK: tl.constexpr, BLOCK_MASK: tl.constexpr, INNER_MASK: tl.constexpr, PORTABLE: tl.constexpr,
):
    """bool: what the bool mask and the block mask show."""
    visible = (queries < seq_q) & (keys < seq_k)
    if BOOL_MASK:
        visible = visible & (dense_tile(mask, mask_strides, batch, head, queries, keys, seq_q, seq_k, 0) != 0)
    if BLOCK_MASK:
        rows = queries // block_sizes[0]
        columns = keys // block_sizes[1]
        visible = visible & (
            dense_tile(blocks, block_strides, batch, head, rows, columns, tl.cdiv(seq_q, block_sizes[0]), tl.cdiv(seq_k, block_sizes[1]), 0)
            != 0
        )
    if INNER_MASK:
        shown = dense_tile(inner, inner_strides, batch, head, queries, keys, seq_q, seq_k, 0) != 0
        if PORTABLE:
            shown = shown | ((present & INNER) == 0)
        visible = visible & shown
    return visible


@triton.jit
def unit_of(BIAS: tl.constexpr):
    """What a score is counted in: log2(e) of it, so that exp2 needs no product; with a float mask the score itself.

    A bias may be the lowest float, whose product with log2(e) is -inf, and that means something else.
    """
    return 1.0 if BIAS else LOG2E


@triton.jit
def weight_of(scores, shift, BIAS: tl.constexpr):
    """exp of a difference of scores, whatever they are counted in."""
    return tl.exp2((scores - shift) * LOG2E) if BIAS else tl.exp2(scores - shift)


@triton.jit
def score_tile(
    product, queries, keys, mask, mask_strides, blocks, block_strides, inner, inner_strides, block_sizes, batch, head, slope, seq_q, seq_k, offset, left, right, scale, softcap, inner_scale,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr, BOOL_MASK: tl.constexpr,
    BLOCK_MASK: tl.constexpr, INNER_MASK: tl.constexpr, ALIBI: tl.constexpr, CUT: tl.constexpr,
    FAST_TANH: tl.constexpr, present, PORTABLE: tl.constexpr, BY_KEY: tl.constexpr = False,
):
    """Scores in units of `unit_of`; where CUT, -inf for what a row may not see. inner_scale = scale / softcap."""
    unit = unit_of(BIAS)
    scores = product * (scale * unit)
    if SOFTCAP:
        scores = tanh(product * inner_scale, FAST_TANH) * (softcap * unit)
    if BIAS:
        bias = dense_tile(mask, mask_strides, batch, head, queries, keys, seq_q, seq_k, MINUS_INF).to(tl.float32)
        scores = tl.where(bias == MINUS_INF, MINUS_INF, scores + bias)
    if ALIBI:
        scores = scores - (slope * unit) * tl.abs(keys - (queries + offset)).to(tl.float32)
    if CUT:
        visible = band_tile(queries, keys, seq_q, seq_k, offset, left, right, LEFT, RIGHT, BY_KEY)
        if BOOL_MASK or BLOCK_MASK:
            visible = visible & masked_tile(
                mask, mask_strides, blocks, block_strides, inner, inner_strides, block_sizes, batch, head, queries, keys, seq_q, seq_k, present, BOOL_MASK, BLOCK_MASK, INNER_MASK, PORTABLE
            )
        scores = tl.where(visible, scores, MINUS_INF)
    return scores


@triton.jit
def plain_scores(product, scale, softcap, inner_scale, SOFTCAP: tl.constexpr, FAST_TANH: tl.constexpr):
    """(x, factor >= 0): the scores are x * factor in log2, where nothing is added and nothing hidden.

    So the largest score is found before the product, and the product becomes one with the exponential's difference.
    """
    if SOFTCAP:
        x = tanh(product * inner_scale, FAST_TANH)
        factor = softcap * LOG2E
    else:
        x = product
        factor = scale * LOG2E
    return x, factor


@triton.jit
def bound_of(softcap):
    """What stands in for a row's maximum where nothing but a softcap decides how large a score is, in log2.

    The cap, so that weights are below 2; above a cap of 33 less, so that those of a row whose scores all lie at -cap
    are still 2^-96, and what they make of V is no subnormal number, which the hardware need not know. A whole number.
    """
    cap = softcap * LOG2E
    return tl.floor(tl.minimum(cap, 96.0 - cap))


@triton.jit
def softcap_slope(product, inner_scale, FAST_TANH: tl.constexpr):
    """The derivative of the softcap at a product."""
    t = tanh(product * inner_scale, FAST_TANH)
    return 1.0 - t * t


@triton.jit
def marked(weights, gone):
    """The weights, and a zero that `hidden` knows again where they are gone."""
    return tl.where(gone, tl.full(weights.shape, HIDDEN, tl.int32).to(tl.float32, bitcast=True), weights)


@triton.jit
def hidden(weights):
    """bool: which weights are `marked`, the zero of an entry that no row sees, and not one that became 0."""
    return weights.to(tl.int32, bitcast=True) == HIDDEN
