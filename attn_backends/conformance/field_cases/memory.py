"""How a tensor lies in memory: the same values in other strides, with NaN wherever the tensor itself is not."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from attn_backends.conformance.field_cases.reading import Case
from attn_backends.conformance.field_cases.rigs import Tensors
from attn_backends.conformance.field_cases.storage import filled

PAD = 8  # further columns of `row_padded`
UNIT_STRIDE = 3  # stride of dims of size 1 under `odd_unit_strides`


def in_memory(case: Case, tensors: Tensors) -> Tensors:
    """The tensors as the case's `memory` wants them; the values are unchanged."""
    wanted = case.get("memory")
    if not wanted:
        return tensors
    args = case.get("args", {})
    query_rows = _row_dim(tensors.q, args.get("layout") == "bhsd")
    heads_first = args.get("kv_layout") == "HND" if case.get("paged") else args.get("layout") == "bhsd"
    key_rows = _row_dim(tensors.k, heads_first)
    if "fused" in wanted.values():
        return _fused(case, tensors, query_rows)
    rows = {"q": query_rows, "k": key_rows, "v": key_rows}
    return Tensors(
        **{
            name: placed(tensor, wanted.get(name, "contiguous"), rows[name])
            for name, tensor in tensors._asdict().items()
        }
    )


def _row_dim(tensor: torch.Tensor, heads_first: bool) -> int:
    """The dim that counts tokens (slots in a page cache)."""
    if tensor.dim() == 3:
        return 0
    return 2 if heads_first else 1


def placed(tensor: torch.Tensor, kind: str, row_dim: int) -> torch.Tensor:
    """One tensor in one kind of memory. Raises ValueError for a kind that the format does not know."""
    if kind not in _KINDS:
        raise ValueError(f"memory {kind!r} is none of {', '.join((*_KINDS, 'fused'))}")
    return _KINDS[kind](tensor, row_dim)


def _contiguous(tensor: torch.Tensor, _row: int) -> torch.Tensor:
    return tensor.contiguous()


def _head_major(tensor: torch.Tensor, row_dim: int) -> torch.Tensor:
    """Heads before rows in storage, whatever the tensor's own order."""
    if tensor.dim() == 4 and row_dim == 2:
        return tensor.contiguous()
    return tensor.transpose(row_dim, row_dim + 1).contiguous().transpose(row_dim, row_dim + 1)


def _row_padded(tensor: torch.Tensor, _row: int) -> torch.Tensor:
    width = tensor.shape[-1]
    buffer = filled((*tensor.shape[:-1], width + PAD), math.nan, tensor.dtype)
    return _copied(buffer[..., :width], tensor)


def _row_step2(tensor: torch.Tensor, row_dim: int) -> torch.Tensor:
    sizes = list(tensor.shape)
    sizes[row_dim] *= 2
    buffer = filled(tuple(sizes), math.nan, tensor.dtype)
    every_second = [slice(None)] * tensor.dim()
    every_second[row_dim] = slice(None, None, 2)
    return _copied(buffer[tuple(every_second)], tensor)


def _last_dim_step2(tensor: torch.Tensor, _row: int) -> torch.Tensor:
    buffer = filled((*tensor.shape[:-1], 2 * tensor.shape[-1]), math.nan, tensor.dtype)
    return _copied(buffer[..., ::2], tensor)


def _odd_unit_strides(tensor: torch.Tensor, _row: int) -> torch.Tensor:
    dense = tensor.contiguous()
    strides = [UNIT_STRIDE if size == 1 else step for size, step in zip(dense.shape, dense.stride(), strict=True)]
    return dense.as_strided(dense.shape, strides)


def _copied(view: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    view.copy_(tensor)
    return view


_KINDS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "contiguous": _contiguous,
    "head_major": _head_major,
    "row_padded": _row_padded,
    "row_step2": _row_step2,
    "last_dim_step2": _last_dim_step2,
    "odd_unit_strides": _odd_unit_strides,
}


def _fused(case: Case, tensors: Tensors, row_dim: int) -> Tensors:
    """q, k and v as views of one buffer with all their heads."""
    if set(case.get("memory").values()) != {"fused"} or set(case.get("memory")) != set("qkv"):
        raise ValueError(f"case {case.id}: q, k and v are fused together or not at all")
    head_dim = row_dim + 1 if row_dim != 2 else 1
    sizes = list(tensors.q.shape)
    sizes[head_dim] = sum(tensor.shape[head_dim] for tensor in tensors)
    sizes[-1] = max(tensor.shape[-1] for tensor in tensors)
    buffer = filled(tuple(sizes), math.nan, tensors.q.dtype)
    views, start = [], 0
    for tensor in tensors:
        view = buffer.narrow(head_dim, start, tensor.shape[head_dim])[..., : tensor.shape[-1]]
        views.append(_copied(view, tensor))
        start += tensor.shape[head_dim]
    return Tensors(*views)
