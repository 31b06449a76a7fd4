"""Who sees what, as bool tensors: band, `seq_lens` and `attn_mask` composed by intersection.

`Visibility` holds the composed mask, its empty rows and the keys that some row sees. Nothing is expanded: dims along
which the mask is constant keep size 1. Device tensors only, no sync.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from attn_backends.backends.torch_sdpa.band import Band, bounds

if TYPE_CHECKING:
    from attn_backends.call import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """`keys` bool, broadcasts to [B, Hq, rows, keys]; `bias` the float mask in the same frame, or None.

    `empty` broadcasts to [B, Hq, rows, 1], True where a row sees nothing. `seen` broadcasts to [B, Hkv, keys, 1],
    True where some row of some query head of the group sees the key. Both None where the band alone hides keys: then
    no row is empty and every key is seen.
    """

    keys: torch.Tensor
    bias: torch.Tensor | None = None
    empty: torch.Tensor | None = None
    seen: torch.Tensor | None = None


def visibility_of(call: Call, band: Band, kv_heads: int) -> Visibility:
    """Compose everything that hides keys in the band's slice of the call."""
    parts = [part for part in (_diagonal(call, band), _lengths(call, band)) if part is not None]
    bias = None
    if call.attn_mask is not None:
        mask = slice_mask(call.attn_mask, band)
        bias = None if mask.dtype == torch.bool else mask
        parts.append(mask if bias is None else bias != -torch.inf)
    keys = _all_of(parts, call, band)
    if call.attn_mask is None and call.seq_lens is None:
        return Visibility(keys=keys)
    return Visibility(keys=keys, bias=bias, empty=~keys.any(-1, keepdim=True), seen=_seen(keys, kv_heads))


def rows_differ(call: Call, band: Band) -> bool:
    """Whether one row may see a key that another does not, by shapes alone."""
    left, right = (band.left, band.right) if call.seq_lens is None else bounds(call)
    if band.rows > 1 and (left is not None or right is not None):
        return True
    mask = call.attn_mask
    return mask is not None and max((1, 1, *mask.shape)[-3:-1]) > 1  # heads, rows


def slice_mask(mask: torch.Tensor, band: Band) -> torch.Tensor:
    """The band's part of an `attn_mask`, as a 4-d view; broadcast dims stay 1."""
    mask = mask[(None,) * (4 - mask.dim())]
    if mask.shape[2] != 1:
        mask = mask[:, :, band.first_row : band.end_row]
    if mask.shape[3] != 1:
        mask = mask[..., band.first_key : band.end_key]
    return mask


def _all_of(parts: list[torch.Tensor], call: Call, band: Band) -> torch.Tensor:
    keys = torch.ones((1, 1, 1, band.keys), dtype=torch.bool, device=call.q.device)
    for part in parts:
        keys = keys & part
    return keys


def _diagonal(call: Call, band: Band) -> torch.Tensor | None:
    """[1 or B, 1, rows, keys]: the band itself; per sequence where lengths differ."""
    left, right = (band.left, band.right) if call.seq_lens is None else bounds(call)
    if left is None and right is None:
        return None
    device = call.q.device
    key = torch.arange(band.keys, device=device).view(1, 1, 1, -1)
    position = torch.arange(band.rows, device=device).view(1, 1, -1, 1) + _offset(call, band)
    visible = None if right is None else key <= position + right
    if left is None:
        return visible
    near = key >= position - left
    return near if visible is None else visible & near


def _offset(call: Call, band: Band) -> torch.Tensor | int:
    if call.seq_lens is None:
        return band.offset
    return 0 if call.causal_alignment == "top_left" else call.seq_lens.view(-1, 1, 1, 1) - band.rows


def _lengths(call: Call, band: Band) -> torch.Tensor | None:
    if call.seq_lens is None:
        return None
    key = torch.arange(band.keys, device=call.q.device).view(1, 1, 1, -1)
    return key < call.seq_lens.view(-1, 1, 1, 1)


def _seen(keys: torch.Tensor, kv_heads: int) -> torch.Tensor:
    by_head = keys.any(-2)
    if by_head.shape[1] != 1:
        batch, heads, width = by_head.shape
        by_head = by_head.reshape(batch, kv_heads, heads // kv_heads, width).any(2)
    return by_head.unsqueeze(-1)
