"""The forward kernel: one program owns BLOCK_M queries of one head and walks over the keys that they may see.

    for every tile of BLOCK_N keys:
        s   = (q8 k8^T) * q_scale * k_scale * scale * log2 e        float32, -inf where hidden
        m'  = max(m, rowmax(s))
        p   = exp2(s - m' + 8)                                      at most 256
        l   = l * exp2(m - m') + rowsum(p)
        acc = acc * exp2(m - m') + (e4m3(p) vt8^T) * v_scale
    out = acc / l,   lse = (m - 8 + log2(l)) * ln 2

Both products are of e4m3; the second starts from zero in every tile and is added in float32, so that what a matrix unit
adds up with fewer bits never is a long sum. 2^8 brings weights down to 2^-17 into the format's range. V has its keys in the
order of registers (`operands`), and so have the weights.

Shapes: q8 [BLOCK_M, D], k8 [BLOCK_N, D], vt8 [Dv, BLOCK_N]; m, l [BLOCK_M] and acc [BLOCK_M, Dv] in float32. BLOCK_M and
BLOCK_N divide 128, the tokens of a scale.
"""

import triton
import triton.language as tl

from attn_backends.backends.fp8.portable.walk import key_stretches, visible_tile
from attn_backends.backends.fp8.quantize.codes import codes_of
from attn_backends.backends.fp8.quantize.sequences import BLOCK, first_row, sequence_of

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)
MINUS_INF: tl.constexpr = tl.constexpr(float("-inf"))
LIFT: tl.constexpr = tl.constexpr(8.0)  # log2 of what the largest weight becomes
LARGEST_FACTOR: tl.constexpr = tl.constexpr(2.0**100)  # of a product of codes: scores stay finite
FINITE: tl.constexpr = tl.constexpr(2.0**127)
# A score less the largest is off by what that one was rounded by, in a product that is not rounded itself. Beyond this both
# are made smaller, to this: the largest takes the whole row with either.
REACH: tl.constexpr = tl.constexpr(2.0**18)


@triton.jit
def load_tokens(
    base, strides, start, end, ROWS: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, CHECKED: tl.constexpr
):
    """Codes [ROWS, WIDTH] of a head. WIDE: offsets inside them leave 32 bits; CHECKED: 0 from `end` on."""
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    if WIDE:
        rows = rows.to(tl.int64)
        columns = columns.to(tl.int64)
    corner = base + tl.cast(start, tl.int64) * strides[2]
    pointers = corner + (rows[:, None] * strides[2] + columns[None, :] * strides[3])
    if CHECKED:
        tile = tl.load(pointers, mask=(rows + start < end)[:, None], other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def in_register_order(weights, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """Columns 16 g + 8 j + 2 t + e as columns 16 g + 4 t + 2 j + e: each thread keeps its own."""
    return weights.reshape(ROWS, KEYS // 16, 2, 4, 2).permute(0, 1, 3, 2, 4).reshape(ROWS, KEYS)


@triton.jit(do_not_specialize=("num_q_heads", "gqa_ratio", "longest_q", "longest_k", "left", "right"))
def attention_forward(
    q8, k8, vt8, q_scale, k_scale, v_scale, out, lse, starts_q, starts_k,
    q_strides, k_strides, v_strides, q_scale_strides, k_scale_strides, v_scale_strides, out_strides, lse_strides,
    num_q_heads, gqa_ratio, longest_q, longest_k, scale, left, right,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    PACKED_Q: tl.constexpr, PACKED_K: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, EVEN_K: tl.constexpr,
    WIDE: tl.constexpr, NATIVE: tl.constexpr, STORE_LSE: tl.constexpr,
):
    """Grid: one program per (query tile, head, sequence), one-dimensional; the tile with the longest walk first."""
    tiles = tl.cdiv(longest_q, BLOCK_M)
    program = tl.program_id(0)
    tile = program % tiles
    head = program // tiles % num_q_heads
    batch = program // tiles // num_q_heads
    if RIGHT:
        tile = tiles - 1 - tile
    kv_head = head // gqa_ratio
    first_q, seq_q = sequence_of(batch, starts_q, longest_q, PACKED_Q)
    first_k, seq_k = sequence_of(batch, starts_k, longest_k, PACKED_K)
    start_q = tile * BLOCK_M
    if start_q >= seq_q:
        return
    offset = seq_k - seq_q
    queries = start_q + tl.arange(0, BLOCK_M)

    q_base = first_row(q8, q_strides, batch, head, first_q, PACKED_Q)
    k_base = first_row(k8, k_strides, batch, kv_head, first_k, PACKED_K)
    v_base = vt8 + batch.to(tl.int64) * v_strides[0] + kv_head.to(tl.int64) * v_strides[1]
    v_pointers = tl.arange(0, DV).to(tl.int64)[:, None] * v_strides[2] + tl.arange(0, BLOCK_N)[None, :]
    k_scales = k_scale + batch * k_scale_strides[0] + kv_head * k_scale_strides[1]
    v_scales = v_scale + batch * v_scale_strides[0] + kv_head * v_scale_strides[1]
    q_tile = load_tokens(q_base, q_strides, start_q, seq_q, BLOCK_M, D, WIDE, True)
    q_scales = q_scale + batch * q_scale_strides[0] + head * q_scale_strides[1]
    q_factor = tl.load(q_scales + start_q // BLOCK * q_scale_strides[2]) * (scale * LOG2_E)
    q_factor = tl.where(q_factor > FINITE, FINITE, tl.where(q_factor < -FINITE, -FINITE, q_factor))  # times a k scale of 0

    begin, whole, cut, end = key_stretches(start_q, seq_q, seq_k, offset, left, right, BLOCK_M, BLOCK_N, LEFT, RIGHT)
    top = tl.full([BLOCK_M], MINUS_INF, dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, DV], dtype=tl.float32)
    ENDS_CUT: tl.constexpr = LEFT or RIGHT or not EVEN_K
    for stretch in tl.static_range(3):
        if stretch == 1 or (stretch == 0 and LEFT) or (stretch == 2 and ENDS_CUT):
            if stretch == 0:
                low = begin
                high = whole
            elif stretch == 1:
                low = whole
                high = cut
            else:
                low = cut
                high = end
            for start in tl.range(low, high, BLOCK_N):
                keys = start + tl.arange(0, BLOCK_N)
                k_tile = load_tokens(k_base, k_strides, start, seq_k, BLOCK_N, D, WIDE, stretch != 1)
                block = start // BLOCK
                factor = q_factor * tl.load(k_scales + block * k_scale_strides[2])
                factor = tl.where(factor > LARGEST_FACTOR, LARGEST_FACTOR, tl.where(factor < -LARGEST_FACTOR, -LARGEST_FACTOR, factor))
                scores = tl.dot(q_tile, k_tile.T) * factor
                if stretch != 1:
                    visible = visible_tile(queries[:, None], keys[None, :], seq_k, offset, left, right, LEFT, RIGHT)
                    scores = tl.where(visible, scores, MINUS_INF)
                top_new = tl.maximum(top, tl.max(scores, 1))
                shift = tl.where(top_new == MINUS_INF, 0.0, top_new) if stretch != 1 else top_new
                share = tl.minimum(1.0 / tl.maximum(tl.abs(shift), 1.0) * REACH, 1.0)
                p = tl.exp2(scores * share[:, None] - (shift * share - LIFT)[:, None])
                fade = tl.exp2(top - shift)
                total = total * fade + tl.sum(p, 1)
                weights = in_register_order(codes_of(p, NATIVE), BLOCK_M, BLOCK_N)
                v_tile = tl.load(v_base + start + v_pointers)
                weight = tl.load(v_scales + block * v_scale_strides[2])
                acc = acc * fade[:, None] + tl.dot(weights, v_tile.T) * weight
                top = top_new

    filled = tl.where(total == 0.0, 1.0, total)  # a NaN stays one
    acc = tl.where((total == 0.0)[:, None], 0.0, acc / filled[:, None])
    out_base = first_row(out, out_strides, batch, head, first_q, PACKED_Q) + tl.cast(start_q, tl.int64) * out_strides[2]
    columns = tl.arange(0, DV).to(tl.int64)
    rows = tl.arange(0, BLOCK_M).to(tl.int64)
    targets = out_base + (rows[:, None] * out_strides[2] + columns[None, :] * out_strides[3])
    tl.store(targets, acc.to(out.dtype.element_ty), mask=(queries < seq_q)[:, None])
    if STORE_LSE:
        natural = tl.where(total == 0.0, MINUS_INF, (top - LIFT + tl.log2(filled)) * LN_2)
        lse_base = lse + head.to(tl.int64) * lse_strides[1] + tl.cast(first_q, tl.int64) * lse_strides[2]
        if not PACKED_Q:
            lse_base += batch.to(tl.int64) * lse_strides[0]
        tl.store(lse_base + queries.to(tl.int64) * lse_strides[2], natural, mask=queries < seq_q)
