"""Bytes between the processor and its memory.

`necessary_*`: what every kernel moves: each input read once (K and V as far as somebody sees them, in the format in which
they are stored, with their scales), each output written once. `score_bytes` and `widened_kv`: what a materialising
algorithm adds by keeping scores and weights in memory. `converted`: what the conversions of an adapter add.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from attn_backends.selector.cost.extent import Extent

if TYPE_CHECKING:
    from attn_backends.request import Request

BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1,
}  # fmt: skip
WIDE = 4  # float32: scores, LSE, scales
# Passes over the scores in memory. Forward: written, read for scaling, masking and softmax with a copy each, read for
# P V; backward: S and P again, dP, dS and their reads.
FORWARD_PASSES = 10
BACKWARD_PASSES = 18


def stored_kv_bytes(request: Request, keys: int) -> int:
    """K and V of so many keys as they are stored, without scales."""
    item = BYTES[request.dtype]
    k = item if request.k_format == "dense" else 1
    v = item if request.v_format == "dense" else 1
    of_token: int = request.num_kv_heads * (request.head_dim_qk * k + request.head_dim_v * v)
    return keys * of_token


def necessary_forward(request: Request, extent: Extent) -> float:
    """Q, K, V, scales and masks in; the output, and the LSE where it is asked for, out."""
    item = BYTES[request.dtype]
    out = _out_item(request, item)
    rows = extent.queries * request.num_q_heads
    moved: float = rows * (request.head_dim_qk * item + request.head_dim_v * out)
    moved += stored_kv_bytes(request, extent.keys) + _scale_bytes(request, extent.keys)
    if request.mask != "none" or request.bias:
        moved += request.seq_q * request.seq_k * (item if request.bias else 1)
    if request.return_lse or request.needs_backward:
        moved += rows * WIDE
    return moved


def necessary_backward(request: Request, extent: Extent) -> float:
    """Q, K, V, the output, its gradient and the LSE in; three gradients out."""
    item = BYTES[request.dtype]
    rows = extent.queries * request.num_q_heads
    of_queries = rows * (2 * request.head_dim_qk * item + 2 * request.head_dim_v * item + WIDE)
    return of_queries + 2 * stored_kv_bytes(request, extent.keys)


def score_bytes(request: Request, extent: Extent, *, backward: bool) -> float:
    """Scores and weights of every pair, hidden ones too, in float32."""
    passes = BACKWARD_PASSES if backward else FORWARD_PASSES
    return passes * WIDE * extent.every * request.num_q_heads


def widened_kv(request: Request, extent: Extent) -> float:
    """Float32 copies of K and V, written and read: what a materialising algorithm works on."""
    return 2 * WIDE * extent.keys * request.num_kv_heads * (request.head_dim_qk + request.head_dim_v)


def converted(names: tuple[str, ...], request: Request, extents: Sequence[Extent]) -> list[float]:
    """What these conversions read and write by size, each as often as its name says; unknown ones count nothing."""
    fixed = per_query = per_key = 0
    for name in names:
        of_all, of_query, of_key = _CONVERTED.get(name, _nothing)(request)
        fixed, per_query, per_key = fixed + of_all, per_query + of_query, per_key + of_key
    return [fixed + per_query * extent.queries + per_key * extent.keys for extent in extents]


def _out_item(request: Request, item: int) -> int:
    if request.out_dtype != "same":
        return BYTES[request.out_dtype]
    return 2 if request.q_format != "dense" else item


def _scale_bytes(request: Request, keys: int) -> float:
    """Descales that grow with the keys; those per tensor, head or channel are too few to count."""
    if request.k_granularity == request.v_granularity == "none":
        return 0.0
    scales = 0.0
    for granularity in (request.k_granularity, request.v_granularity):
        if granularity == "per_token_head":
            scales += keys * request.num_kv_heads
        elif granularity == "block" and request.scale_block:
            scales += keys / request.scale_block * request.num_kv_heads
    return scales * WIDE


# Bytes of one conversion: (in all, more per query token, more per key token that somebody sees).
Moved = tuple[int, int, int]


def _nothing(_request: Request) -> Moved:
    return 0, 0, 0


def _wide(request: Request) -> int:
    """One token of K and V, widened."""
    return request.num_kv_heads * (request.head_dim_qk + request.head_dim_v) * max(2, BYTES[request.dtype])


def _whole(request: Request) -> Moved:
    return 0, 2 * request.num_q_heads * request.head_dim_qk * BYTES[request.dtype], 2 * stored_kv_bytes(request, 1)


_CONVERTED: dict[str, Callable[[Request], Moved]] = {
    "make_contiguous": _whole,
    "pad_head_dim": _whole,
    "repeat_kv": lambda request: (0, 0, 2 * _wide(request) * (request.num_q_heads // request.num_kv_heads)),
    "expand_mask": lambda request: (2 * request.seq_q * request.seq_k * BYTES[request.dtype], 0, 0),
    "dequantize_kv": lambda request: (0, 0, 2 * _wide(request)),
    "gather_pages": lambda request: (0, 0, 2 * stored_kv_bytes(request, 1)),
    "sanitize_kv": lambda request: (0, 0, stored_kv_bytes(request, 1)),
}
