"""The descale of one sequence's q, k or v, shaped to multiply its rows [heads, tokens, width]."""

from __future__ import annotations

import torch

from attn_backends.call import Call
from attn_backends.conformance.controls.places import Place, out_of_pages


def descale(call: Call, name: str, place: Place, heads: int) -> torch.Tensor | None:
    """[1 | heads, 1 | tokens, 1 | width] for q, k or v, or None for a dense tensor."""
    scale: torch.Tensor | None = getattr(call, f"{name}_descale")
    if scale is None:
        return None
    shaped = _shaped(scale, getattr(call, f"{name}_granularity"), call, name, place)
    return shaped if shaped.shape[0] in (1, heads) else shaped.repeat_interleave(heads // shaped.shape[0], dim=0)


def _shaped(scale: torch.Tensor, granularity: str, call: Call, name: str, place: Place) -> torch.Tensor:
    if granularity == "per_tensor":
        return scale.reshape(1, 1, 1)
    if granularity == "per_head":
        return (scale if scale.dim() == 1 else scale[place.index])[:, None, None]
    if granularity == "per_channel":
        return scale[:, None, :]
    tokens = place.seq_q if name == "q" else place.seq_k
    if granularity == "block":
        block = torch.arange(tokens, device=scale.device) // (call.scale_block or 1)
        return scale[place.index][:, block, None]
    return _by_token(scale, call, name, place, tokens)


def _by_token(scale: torch.Tensor, call: Call, name: str, place: Place, tokens: int) -> torch.Tensor:
    if name != "q" and call.block_table is not None:
        return out_of_pages(scale.unsqueeze(-1), call, place)
    first = place.first_q if name == "q" else place.first_k
    rows = scale[place.index, :tokens] if first is None else scale[first : first + tokens]
    return rows.movedim(0, 1).unsqueeze(-1)
