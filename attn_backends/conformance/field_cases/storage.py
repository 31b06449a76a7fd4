"""From logical float64 tensors to what `attention` gets: stored dtype, layout or page cache, packed rows."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch

from attn_backends.conformance.field_cases.reading import Case
from attn_backends.conformance.field_cases.rigs import Tensors

FORMATS = {
    "scaled-fp8-e4m3": torch.float8_e4m3fn,
    "scaled-fp8-e5m2": torch.float8_e5m2,
    "scaled-int8": torch.int8,
}


def stored_tensors(case: Case, logical: Tensors, dtype: torch.dtype) -> Tensors:
    """The case's tensors in their storage dtype, packed, permuted or paged; each contiguous as it then is."""
    args = case.get("args", {})
    q = stored(logical.q, dtype)
    k = stored(logical.k, FORMATS.get(case.get("k_format", ""), dtype))
    v = stored(logical.v, FORMATS.get(case.get("v_format", ""), dtype))
    layout = args.get("layout", "bshd")
    if case.get("paged"):
        return Tensors(_laid_out(q, layout, args.get("cu_seqlens_q")), _paged(case, k), _paged(case, v))
    keys = [_laid_out(tensor, layout, args.get("cu_seqlens_k")) for tensor in (k, v)]
    tail = case.get("tail_rows_k", 0)
    if layout == "thd" and tail:
        keys = [torch.cat([rows, filled((tail, *rows.shape[1:]), math.nan, rows.dtype)]) for rows in keys]
    return Tensors(_laid_out(q, layout, args.get("cu_seqlens_q")), *keys)


def stored(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Float64 numbers in a storage dtype; int8 rounds, and has 127 for NaN."""
    if dtype != torch.int8:
        return numbers.to(dtype)
    return numbers.nan_to_num(nan=127.0).round().clamp(-128, 127).to(dtype)


def filled(sizes: tuple[int, ...], value: float, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of one number, in any storage dtype."""
    return stored(torch.full(sizes, value, dtype=torch.float64), dtype)


def _laid_out(tensor: torch.Tensor, layout: str, cu_seqlens: list[int] | None) -> torch.Tensor:
    if layout == "bhsd":
        return tensor.transpose(1, 2).contiguous()
    if layout != "thd":
        return tensor
    lengths = _lengths(tensor, cu_seqlens)
    return torch.cat([rows[: max(length, 0)] for rows, length in zip(tensor, lengths, strict=False)])


def _lengths(tensor: torch.Tensor, cu_seqlens: list[int] | None) -> list[int]:
    if cu_seqlens is None:
        return [tensor.shape[1]] * tensor.shape[0]
    return [after - before for before, after in pairwise(cu_seqlens)]


def _paged(case: Case, tensor: torch.Tensor) -> torch.Tensor:
    """The cache: position p of sequence b lies in page block_table[b][p // page_size], slot p % page_size."""
    paged: dict[str, Any] = case.get("paged")
    args = case.get("args", {})
    size, pages = paged["page_size"], paged["num_pages"]
    cache = filled((pages, size, *tensor.shape[2:]), paged.get("poison", 0.0), tensor.dtype)
    for rows, table, length in zip(tensor, args.get("block_table", ()), args.get("seq_lens", ()), strict=False):
        for position in range(min(length, rows.shape[0], len(table) * size)):
            page = table[position // size]
            if 0 <= page < pages:
                cache[page, position % size] = rows[position]
    return cache.transpose(1, 2).contiguous() if args.get("kv_layout") == "HND" else cache
