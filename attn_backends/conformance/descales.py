"""How a descale lies over logical tokens: value[b, h, s, w] = stored[b, h, s, w] * scale[b, h, s, w], in float64.

A reading of the contract of its own, not the host's: granularity by name, or by shape where the shape means one thing.
Letters: B sequences, H heads, S the longest sequence in tokens, W width, T packed tokens, P pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attn_backends.conformance.logical import Cells

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scaling:
    """A tensor's descale as the call gives it.

    descale: a float, a float32 tensor, or None for a dense tensor; named: its granularity by name, or None
    heads: how many heads the scale may have (q may be scaled by KV head); block: tokens per scale under `block`
    stored: the shape of the scaled tensor in storage
    """

    descale: torch.Tensor | float | None
    named: str | None
    heads: Shape
    block: int | None
    stored: Shape


def multiplied(values: torch.Tensor, scaling: Scaling, cells: Cells) -> torch.Tensor:
    """values [B, H, S, W] times their descale. Raises ValueError for a shape that means nothing, or two things."""
    if scaling.descale is None:
        return values
    scale = torch.as_tensor(scaling.descale, dtype=torch.float32, device=values.device).to(torch.float64)
    granularity = scaling.named or granularity_by_shape(tuple(scale.shape), scaling, cells)
    spread = _spread(scale, granularity, scaling, cells, values.shape[2])
    own_head = torch.arange(values.shape[1], device=values.device) * spread.shape[1] // values.shape[1]
    return values * spread[:, own_head]


def granularity_by_shape(shape: Shape, scaling: Scaling, cells: Cells) -> str:
    """The one granularity that a descale of this shape has; a single axis is always heads."""
    if shape in ((), (1,)):
        return "per_tensor"
    if len(shape) == 1:
        return "per_head"
    batch, width = cells.valid.shape[0], scaling.stored[-1]
    found = set()
    for heads in scaling.heads:
        legal: dict[str, Shape] = {
            "per_head": (batch, heads),
            "per_channel": (heads, width),
            "per_token_head": _shape_by_token(heads, scaling, cells),
        }
        if scaling.block is not None:
            legal["block"] = (batch, heads, -(-cells.capacity // scaling.block))
        found |= {name for name, wanted in legal.items() if wanted == shape}
    if len(found) != 1:
        raise ValueError(f"a descale of shape {list(shape)} means {' or '.join(sorted(found)) or 'nothing'} here")
    return found.pop()


def _shape_by_token(heads: int, scaling: Scaling, cells: Cells) -> Shape:
    if cells.kind == "packed":
        return scaling.stored[0], heads
    if cells.kind == "dense":
        return cells.valid.shape[0], cells.capacity, heads
    pages, second, third, _width = scaling.stored
    return (pages, heads, third) if cells.heads_first else (pages, second, heads)


def _spread(scale: torch.Tensor, granularity: str, scaling: Scaling, cells: Cells, tokens: int) -> torch.Tensor:
    """The scale as [B|1, h, S|1, W|1], h its own number of heads."""
    if granularity == "per_tensor":
        return scale.reshape(1, 1, 1, 1)
    if granularity == "per_head":
        return scale.reshape(-1, scale.shape[-1], 1, 1)
    if granularity == "per_channel":
        return scale[None, :, None, :]
    if granularity == "per_token_head":
        by_cell = scale.unsqueeze(-1)
        return cells.pick(by_cell if cells.kind == "dense" else cells.view(by_cell))
    if granularity == "block" and scaling.block is not None:
        return scale[:, :, torch.arange(tokens, device=scale.device) // scaling.block, None]
    raise ValueError(f"granularity {granularity!r} is not one that a scale has here")
