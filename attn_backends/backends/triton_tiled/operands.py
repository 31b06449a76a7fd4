"""A call as the kernels take it: one order of strides for every layout, limits clamped, features as flags."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from attn_backends.backends.triton_tiled.present import present_in
from attn_backends.block_mask import as_four_dims

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attn_backends.call import Call

Strides = tuple[int, int, int, int]


class Sizes(NamedTuple):
    """Heads of q and of k, longest sequences, head widths of q, k and of v."""

    heads: int
    kv_heads: int
    longest_q: int
    longest_k: int
    width: int
    width_v: int


_NO_STRIDES: Strides = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """What forward and backward share.

    band       (left, right, 1 where the diagonal ends at the bottom right), clamped to the lengths
    scaling    (softmax_scale, softcap, softmax_scale / softcap); the softcap 1 where there is none
    dropout    (seed, ceil(p * 2^32), 1 / (1 - p))
    lengths    (starts of q, starts of k, lengths of k): int32 tensors or None
    masks      mask, block mask and inner mask with their strides, and the block sizes
    flags      the features as compile-time constants; present: the same as bits
    """

    batch: int
    sizes: Sizes
    band: tuple[int, int, int]
    scaling: tuple[float, float, float]
    dropout: tuple[int, int, float]
    lengths: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
    masks: tuple[Any, ...]
    slopes: torch.Tensor | None
    slope_strides: tuple[int, int]
    flags: dict[str, bool]
    present: int

    @property
    def packed(self) -> tuple[bool, bool]:
        """Whether q, and K and V, are packed."""
        return self.flags["PACKED_Q"], self.flags["PACKED_K"]

    @property
    def masked(self) -> bool:
        """Whether a mask in memory cuts every tile."""
        return self.flags["BIAS"] or self.flags["BOOL_MASK"] or self.flags["BLOCK_MASK"]


def strides_of(tensor: torch.Tensor, layout: str) -> Strides:
    """Strides as (batch, head, token, width), in elements; a packed tensor has no batch."""
    return _in_order(tensor.stride(), layout, 0)


def shape_of(tensor: torch.Tensor, layout: str) -> Strides:
    """The shape as (batch, head, token, width); a packed tensor is one batch entry."""
    return _in_order(tensor.shape, layout, 1)


def _in_order(given: Sequence[int], layout: str, no_batch: int) -> Strides:
    if layout == "bshd":
        return given[0], given[2], given[1], given[3]
    if layout == "bhsd":
        return given[0], given[1], given[2], given[3]
    return no_batch, given[1], given[0], given[2]


def row_strides(rows: torch.Tensor) -> tuple[int, int, int]:
    """(batch, head, token) of an LSE-like tensor [B, H, S] or [H, T]."""
    given = rows.stride()
    return (0, given[0], given[1]) if len(given) == 2 else (given[0], given[1], given[2])


def rows_like(call: Call) -> torch.Tensor:
    """Room for an LSE, float32: [B, Hq, Sq], packed [Hq, Tq]."""
    batch, heads, tokens, _width = shape_of(call.q, call.layout)
    shape = (heads, tokens) if call.layout == "thd" else (batch, heads, tokens)
    return torch.empty(shape, dtype=torch.float32, device=call.q.device)


def operands_of(call: Call) -> Operands:
    """Read a call; touches no tensor's contents."""
    packed_q, packed_k = call.cu_seqlens_q is not None, call.cu_seqlens_k is not None
    token = 2 if call.layout == "bhsd" else 1
    head = 1 if call.layout in ("bhsd", "thd") else 2
    longest_q = call.max_seqlen_q if packed_q else call.q.shape[token]
    longest_k = call.max_seqlen_k if packed_k else call.k.shape[token]
    batch = call.q.shape[0] if call.cu_seqlens_q is None else call.cu_seqlens_q.shape[0] - 1
    right = _both(call.window_right, 0) if call.causal else call.window_right
    reach = longest_q + longest_k
    bias = call.attn_mask is not None and call.attn_mask.is_floating_point()
    block = call.block_mask
    slopes = call.alibi_slopes
    return Operands(
        batch=batch,
        sizes=Sizes(call.q.shape[head], call.k.shape[head], longest_q, longest_k, call.q.shape[-1], call.v.shape[-1]),
        band=(_clamped(call.window_left, reach), _clamped(right, reach), int(call.causal_alignment == "bottom_right")),
        scaling=_scaling(call.softmax_scale, call.softcap),
        dropout=(call.dropout_seed, math.ceil(call.dropout_p * 2**32), 1.0 / (1.0 - call.dropout_p)),
        lengths=(call.cu_seqlens_q, call.cu_seqlens_k, call.seq_lens if not packed_k else None),
        masks=_masks(call),
        slopes=slopes,
        slope_strides=(0, 0) if slopes is None else (0 if slopes.dim() == 1 else slopes.stride(0), slopes.stride(-1)),
        flags={
            "PACKED_Q": packed_q,
            "PACKED_K": packed_k,
            "LENGTHS": call.seq_lens is not None and not packed_k,
            "LEFT": call.window_left >= 0,
            "RIGHT": right >= 0,
            "SOFTCAP": call.softcap is not None and call.softcap < _LARGEST,
            "BIAS": bias,
            "BOOL_MASK": call.attn_mask is not None and not bias,
            "BLOCK_MASK": block is not None,
            "INNER_MASK": block is not None and block.mask is not None,
            "ALIBI": slopes is not None,
            "DROPOUT": call.dropout_p > 0.0,
        },
        present=present_in(call),
    )


_LARGEST = 3.4028234663852886e38  # of float32
_SMALLEST = 1.1754943508222875e-38


def _scaling(scale: float, softcap: float | None) -> tuple[float, float, float]:
    """The cap as a float32: one below its range is the least number, one above is none (`SOFTCAP` is off)."""
    cap = 1.0 if softcap is None or softcap >= _LARGEST else max(softcap, _SMALLEST)
    return scale, cap, max(-_LARGEST, min(scale / cap, _LARGEST))


def _clamped(limit: int, reach: int) -> int:
    """A limit of the band; what is unbounded ends where nothing lies any more."""
    return reach if limit < 0 else min(limit, reach)


def _both(first: int, second: int) -> int:
    """The tighter of two right limits, -1 = unbounded."""
    return second if first < 0 else min(first, second)


def _masks(call: Call) -> tuple[Any, ...]:
    block = call.block_mask
    dense = None if call.attn_mask is None else as_four_dims(call.attn_mask)
    blocks = None if block is None else block.blocks
    inner = None if block is None or block.mask is None else as_four_dims(block.mask)
    sizes = (1, 1) if block is None else (block.block_q, block.block_k)
    return (
        dense, _broadcast_strides(dense), blocks, _broadcast_strides(blocks), inner, _broadcast_strides(inner), sizes
    )  # fmt: skip


def _broadcast_strides(tensor: torch.Tensor | None) -> Strides:
    """Strides with 0 where the tensor has one entry for all."""
    if tensor is None:
        return _NO_STRIDES
    batch, head, query, key = (
        0 if size == 1 else step for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return batch, head, query, key
