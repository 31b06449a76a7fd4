"""`Operands` of a call whose q, k and v came in e4m3: nothing is rounded, V alone is moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attn_backends.backends.fp8.operands import Operands, blocks_of
from attn_backends.backends.fp8.quantize.launch import Sequences, transposed

if TYPE_CHECKING:
    import torch

    from attn_backends.call import Call


def given(call: Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sequences: Sequences) -> Operands:
    """q, k, v: [B, heads, tokens, width] or packed [1, heads, T, width], e4m3, any strides."""
    blocks_q, blocks_k = blocks_of(sequences.longest_q), blocks_of(sequences.longest_k)
    batch = sequences.batch
    return Operands(
        q8=q,
        k8=k,
        vt8=transposed(v, sequences),
        q_scale=per_block(call.q_descale, call.q_granularity, (batch, q.shape[1], blocks_q)),
        k_scale=per_block(call.k_descale, call.k_granularity, (batch, k.shape[1], blocks_k)),
        v_scale=per_block(call.v_descale, call.v_granularity, (batch, v.shape[1], blocks_k)),
        longest_q=sequences.longest_q,
        longest_k=sequences.longest_k,
        starts_q=sequences.starts_q,
        starts_k=sequences.starts_k,
    )


def per_block(descale: torch.Tensor | None, granularity: str, shape: tuple[int, int, int]) -> torch.Tensor:
    """A descale as a view [batch, heads, blocks]: per_tensor, per_head ([H] or [B, H]) or block [B, H, N].

    A scale of q by KV head is repeated for each of its query heads, and is no view.
    """
    if descale is None:
        raise ValueError("a quantised tensor without a descale: the host refuses such calls")
    if granularity == "per_tensor":
        return descale.reshape(1, 1, 1).expand(shape)
    scale = descale.unsqueeze(-1) if granularity == "per_head" else descale
    if scale.shape[-2] != shape[1]:
        scale = scale.repeat_interleave(shape[1] // scale.shape[-2], dim=-2)
    return scale.expand(shape)
