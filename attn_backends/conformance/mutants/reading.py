"""Seams of reading: tensors into per-sequence values [heads, tokens, width]. Defaults of `Seams`; each one is replaced alone."""

# ruff: noqa: ARG001  # a seam takes what the host has; its mutants need it
from __future__ import annotations

import torch

from attn_backends.call import Call
from attn_backends.conformance.controls.descaling import descale
from attn_backends.conformance.controls.places import Place, at_keys, at_queries, out_of_pages


def strided(tensor: torch.Tensor, name: str, call: Call) -> torch.Tensor:
    """The tensor as its own strides say; name is q, k, v or d_out."""
    return tensor


def rows_of(tensor: torch.Tensor, name: str, call: Call, place: Place) -> torch.Tensor:
    """One sequence's stored rows [heads, tokens, width] of q, k, v or d_out."""
    if name in ("q", "d_out"):
        return at_queries(tensor, call, place)
    return at_keys(tensor, call, place) if call.block_table is None else call_pages(tensor, call, place)


def call_pages(cache: torch.Tensor, call: Call, place: Place) -> torch.Tensor:
    """One sequence's rows out of a paged cache."""
    return out_of_pages(cache, call, place)


def scale_of(name: str, call: Call, place: Place, heads: int) -> torch.Tensor | None:
    """What multiplies the stored rows: [1 | heads, 1 | tokens, 1 | width], or None."""
    return descale(call, name, place, heads)


def values_of(rows: torch.Tensor, scale: torch.Tensor | None, work: torch.dtype) -> torch.Tensor:
    """Rows in the work dtype and memory of their own, multiplied by their scale."""
    values = rows.to(work, memory_format=torch.contiguous_format, copy=True)
    return values if scale is None else values * scale.to(work)


def logical(values: torch.Tensor, name: str, call: Call) -> torch.Tensor:
    """Values as wide as the call says; what a kernel pads, it pads here."""
    return values


def kv_head(heads: int, kv_heads: int) -> torch.Tensor:
    """int64 [Hq]: the KV head that each query head reads."""
    return torch.arange(heads) // (heads // kv_heads)


def work_dtype(call: Call) -> torch.dtype:
    """What is computed in."""
    return torch.float64 if call.q.dtype == torch.float64 else torch.float32
