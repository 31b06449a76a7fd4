"""Who sees whom in one sequence, and what is added to the scores; a reading of the spec of the controls' own."""

from __future__ import annotations

import torch

from attn_backends.call import Call
from attn_backends.conformance.controls.places import Place


def ahead(call: Call, place: Place) -> torch.Tensor:
    """int64 [seq_q, seq_k]: how far each key lies ahead of the query's own position."""
    own = torch.arange(place.seq_q, device=call.q.device)
    if call.causal_alignment == "bottom_right":
        own = own + place.seq_k - place.seq_q
    return torch.arange(place.seq_k, device=call.q.device)[None, :] - own[:, None]


def of_sequence(mask: torch.Tensor, place: Place) -> torch.Tensor:
    """A mask of 2 to 4 dims, cut to one sequence: [1 | Hq, 1 | seq_q, 1 | seq_k]."""
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    own = mask[place.index if mask.shape[0] > 1 else 0]
    own = own if own.shape[1] == 1 else own[:, : place.seq_q]
    return own if own.shape[2] == 1 else own[:, :, : place.seq_k]


def visible(call: Call, place: Place, heads: int) -> torch.Tensor:
    """Bool [heads, seq_q, seq_k]."""
    gap = ahead(call, place)
    seen = gap <= 0 if call.causal else torch.ones_like(gap, dtype=torch.bool)
    if call.window_left >= 0:
        seen = seen & (gap + call.window_left >= 0)
    if call.window_right >= 0:
        seen = seen & (gap - call.window_right <= 0)
    seen = seen.expand(heads, *gap.shape)
    if call.attn_mask is not None:
        own = of_sequence(call.attn_mask, place)
        seen = seen & (own if own.dtype == torch.bool else ~torch.isneginf(own))
    if call.block_mask is not None:
        seen = seen & in_blocks(call, place)
    return seen.contiguous()


def in_blocks(call: Call, place: Place) -> torch.Tensor:
    """Bool [1 | Hq, seq_q, seq_k]: what the block mask shows."""
    mask = call.block_mask
    if mask is None:
        raise ValueError("a call without block_mask")
    blocks = mask.blocks[place.index if mask.blocks.shape[0] > 1 else 0]
    i = torch.arange(place.seq_q, device=blocks.device) // mask.block_q
    j = torch.arange(place.seq_k, device=blocks.device) // mask.block_k
    seen = blocks[:, i][:, :, j]
    return seen if mask.mask is None else seen & of_sequence(mask.mask, place)


def added(call: Call, place: Place, work: torch.dtype) -> torch.Tensor | None:
    """[1 | Hq, seq_q, seq_k]: float mask and ALiBi, 0 where the mask hides; None without both."""
    total = None
    if call.attn_mask is not None and call.attn_mask.dtype != torch.bool:
        own = of_sequence(call.attn_mask, place).to(work)
        total = torch.where(torch.isneginf(own), 0.0, own)
    if call.alibi_slopes is not None:
        slopes = call.alibi_slopes if call.alibi_slopes.dim() == 1 else call.alibi_slopes[place.index]
        line = -slopes.to(work)[:, None, None] * ahead(call, place).abs()
        total = line if total is None else total + line
    return total
