"""The part of the hot key that comes from tensors beside q, k and v: what of them a decision or a launch depends on.

Contents never enter it. Lengths that would have to be read from contents are resolved first, into the arguments.
"""

from __future__ import annotations

from typing import Any

import torch

from attn_backends.host.arguments import Arguments
from attn_backends.host.geometry import longest

KEYED_BY_FACTS = (
    "attn_mask", "block_mask", "sinks", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k", "seq_lens", "block_table",
    "q_descale", "k_descale", "v_descale", "out", "dropout_seed",
)  # fmt: skip  # arguments that enter the key through `extras_key`, or not at all (the seed changes no decision)


def extras_key(a: Arguments) -> tuple[Any, ...]:
    """Shapes, dtypes and devices of the further tensors; resolves longest lengths and the phase of packed calls."""
    if a.cu_seqlens_q is not None:
        _resolve_lengths(a)
    mask, block_mask = a.attn_mask, a.block_mask
    return (
        None if mask is None else (mask.shape, mask.stride(), mask.dtype, mask.device, _wants_grad(mask)),
        None if block_mask is None else _block_mask_key(block_mask),
        None if a.sinks is None else (*_facts(a.sinks), _wants_grad(a.sinks)),
        *[_facts(tensor) for tensor in (a.alibi_slopes, a.cu_seqlens_q, a.cu_seqlens_k, a.seq_lens, a.block_table)],
        *[_descale_facts(descale) for descale in (a.q_descale, a.k_descale, a.v_descale)],
        None if a.out is None else (a.out.shape, a.out.stride(), a.out.dtype, a.out.device),
    )  # fmt: skip


def _facts(tensor: torch.Tensor | None) -> tuple[Any, ...]:
    return () if tensor is None else (tensor.shape, tensor.dtype, tensor.device)


def _descale_facts(descale: torch.Tensor | float | None) -> Any:
    return _facts(descale) if isinstance(descale, torch.Tensor) else type(descale)


def _block_mask_key(block_mask: Any) -> tuple[Any, ...]:
    inner = block_mask.mask
    return (block_mask.blocks.shape, block_mask.block_size, _facts(inner))


def _wants_grad(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def _resolve_lengths(a: Arguments) -> None:
    """Fill in what the caller left out and only the lengths tell (a sync on a GPU, unless given)."""
    if a.max_seqlen_q is None:
        a.max_seqlen_q = longest("max_seqlen_q", None, a.cu_seqlens_q, a.graph)
    if a.max_seqlen_k is None and a.cu_seqlens_k is not None:
        a.max_seqlen_k = longest("max_seqlen_k", None, a.cu_seqlens_k, a.graph)
    if a.phase is None and a.block_table is not None:
        a.phase = _phase_of_packed(a)


def _phase_of_packed(a: Arguments) -> str | None:
    """`append` or `mixed` by the lengths, where reading them costs no sync; None leaves it to the sizes."""
    cu_seqlens = a.cu_seqlens_q
    if cu_seqlens is None or cu_seqlens.is_cuda or cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
        return None
    if (a.max_seqlen_q or 0) <= 1:
        return "decode"
    return "append" if int((cu_seqlens[1:] - cu_seqlens[:-1]).min()) > 1 else "mixed"
