"""`request_of`: the `Request` that a case's call makes, without its tensors; what planning asks the selector with. No torch."""

from __future__ import annotations

import functools
import math
from typing import Any

from attn_backends.conformance.case import Case
from attn_backends.conformance.lengths import lengths_of, pages_of, phase_of, tail_rows
from attn_backends.conformance.placement import Placement, placements
from attn_backends.request import Request
from attn_backends.strides import stride_class

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
ALIGNMENT_CAP = 16  # the host looks no further


@functools.lru_cache(maxsize=16384)
def request_of(case: Case) -> Request:
    """What `attention` asks for when it gets the inputs of this case. Raises RequestError for a case that is no legal call."""
    return Request(
        dtype=case.dtype, out_dtype=_out_dtype(case), layout=case.layout, phase=phase_of(case),
        attn_type=case.attn_type, batch=case.batch, seq_q=case.seq_q, seq_k=case.seq_k,
        num_q_heads=case.q_heads, num_kv_heads=case.kv_heads, head_dim_qk=case.head_dim, head_dim_v=case.head_dim_v,
        causal=case.causal, causal_alignment="top_left" if case.top_left else "bottom_right", window_left=case.left,
        window_right=case.right, softmax_scale=case.scale, softcap=case.softcap, sinks=case.sinks, alibi=case.alibi,
        mask="bool" if case.mask == "bool" else "none", bias=case.mask == "bias", block_mask_size=_block_size(case),
        dropout_p=case.dropout, return_lse=case.lse, needs_backward=needs_backward(case),
        grad_bias=case.grad_bias, grad_sinks=case.grad_sinks, deterministic=case.deterministic,
        batch_invariant=case.batch_invariant, nan_safe=case.nan_safe, varlen=case.layout == "thd",
        dense_lengths=case.ragged and case.layout != "thd" and case.page_size is None,
        **_totals(case), **_pages(case), **_formats(case), **_memory(case),
    )  # fmt: skip


def needs_backward(case: Case) -> bool:
    """Whether any input of the case wants a gradient; codes of a quantised format never do."""
    wide = "dense" in (case.q_format, case.k_format, case.v_format)
    return (case.grads and wide) or case.grad_bias or case.grad_sinks


def natural_out_dtype(case: Case) -> str:
    """The output's dtype where none is asked for."""
    return case.dtype if case.q_format == "dense" else "bfloat16"


def kv_dtype(case: Case) -> str:
    """The dtype of a dense K or V."""
    return natural_out_dtype(case)


def _block_size(case: Case) -> int | tuple[int, int] | None:
    pair = case.block_mask is not None and case.block_keys != case.block_mask
    return (case.block_mask or 0, case.block_keys) if pair else case.block_mask


def _out_dtype(case: Case) -> str:
    return "same" if case.out_dtype in (None, natural_out_dtype(case)) else str(case.out_dtype)


def _totals(case: Case) -> dict[str, Any]:
    if case.layout != "thd":
        return {}
    lengths = lengths_of(case)
    total_k = None if case.page_size is not None else sum(lengths.k) + tail_rows(case)
    return {"total_q": sum(lengths.q), "total_k": total_k}


def _pages(case: Case) -> dict[str, Any]:
    if case.page_size is None:
        return {}
    return {"kv_layout": case.kv_layout, "page_size": case.page_size, "num_pages": pages_of(case)[1]}


def _formats(case: Case) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in "qkv":
        fields[f"{name}_format"] = getattr(case, f"{name}_format")
        fields[f"{name}_granularity"] = case.granularity_of(name)
    if "block" in fields.values():
        fields["scale_block"] = case.scale_block
    return fields


def _memory(case: Case) -> dict[str, Any]:
    placed = placements(case)
    fields: dict[str, Any] = {"alignment": _alignment(case, placed)}
    for name, one in placed.items():
        if stride_class(one.sizes, one.strides, one.heads_first) != "contiguous":
            fields[f"{name}_strides"] = one.strides
    return fields


def _alignment(case: Case, placed: dict[str, Placement]) -> int:
    """Largest power of two that divides every pointer and outer stride in bytes; buffers themselves are well aligned."""
    bits = ALIGNMENT_CAP
    for name, one in placed.items():
        size = _item_bytes(case, name)
        if math.prod(one.sizes):
            bits |= one.offset * size
        for count, step in zip(one.sizes[:-1], one.strides[:-1], strict=True):
            if count > 1:
                bits |= step * size
    return bits & -bits


def _item_bytes(case: Case, name: str) -> int:
    if getattr(case, f"{name}_format") != "dense":
        return 1
    return BYTES[case.dtype if name == "q" else kv_dtype(case)]
