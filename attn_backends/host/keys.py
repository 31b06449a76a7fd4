"""The parts of the cache keys of a call: what of its tensors and arguments a decision or a launch depends on.

Contents never enter it. Lengths that would have to be read from contents are resolved first, into the arguments.
Python calls 1, 1.0 and True equal, and some of them are no legal value: scalars enter with their types.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch

from attn_backends.host.arguments import NAMES, Arguments
from attn_backends.host.checks import check_seed
from attn_backends.host.geometry import resolve_lengths

KEYED_BY_FACTS = (
    "attn_mask", "block_mask", "sinks", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k", "seq_lens", "block_table",
    "q_descale", "k_descale", "v_descale", "out", "dropout_seed",
)  # fmt: skip  # arguments that enter the key through `extras_key`, or not at all (the seed changes no decision)

_scalars = attrgetter(*(name for name in NAMES if name not in KEYED_BY_FACTS))


def tensors_key(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, aligned: bool) -> tuple[Any, ...]:
    """Metadata of q, k and v; `aligned`: whether the alignment of their pointers counts."""
    return (
        q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
        q.device, k.device, v.device, aligned and (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15,
        torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad),
    )  # fmt: skip


def scalars_key(a: Arguments) -> tuple[Any, ...]:
    """Every argument that is no tensor, and its type."""
    values = _scalars(a)
    return (*values, *map(type, values))


def extras_key(a: Arguments) -> tuple[Any, ...]:
    """Shapes, dtypes and devices of the further tensors; resolves longest lengths and the phase of packed calls."""
    resolve_lengths(a)
    if a.dropout_seed is not None:
        check_seed(a.dropout_seed)  # no part of any key, so nobody else looks at each call's
    mask, block_mask, out = a.attn_mask, a.block_mask, a.out
    return (
        None if mask is None else (mask.shape, mask.stride(), mask.dtype, mask.device, _wants_grad(mask)),
        None if block_mask is None else _block_mask_key(block_mask),
        *[_facts(t) for t in (a.sinks, a.alibi_slopes, a.cu_seqlens_q, a.cu_seqlens_k, a.seq_lens, a.block_table)],
        *[_descale_facts(descale) for descale in (a.q_descale, a.k_descale, a.v_descale)],
        None if out is None else (out.shape, out.stride(), out.dtype, out.device, _wants_grad(out)),
    )


def _facts(tensor: torch.Tensor | None) -> tuple[Any, ...]:
    return () if tensor is None else (tensor.shape, tensor.dtype, tensor.device, _wants_grad(tensor))


def _descale_facts(descale: torch.Tensor | float | None) -> Any:
    return _facts(descale) if isinstance(descale, torch.Tensor) else type(descale)


def _block_mask_key(block_mask: Any) -> tuple[Any, ...]:
    inner = block_mask.mask
    return (block_mask.blocks.shape, block_mask.block_size, _facts(inner))


def _wants_grad(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()
