"""Seams of visibility: what each rule shows one sequence, and how the rules compose. Defaults of `Seams`."""

# ruff: noqa: ARG001  # a seam takes what the host has; its mutants need it
from __future__ import annotations

import torch

from attn_backends.call import Call
from attn_backends.conformance.controls.places import Place
from attn_backends.conformance.controls.seeing import in_blocks, of_sequence


def diagonal(call: Call, place: Place) -> int:
    """The key position of query 0."""
    return place.seq_k - place.seq_q if call.causal_alignment == "bottom_right" else 0


def shown_by_causal(distance: torch.Tensor, call: Call, place: Place) -> torch.Tensor | None:
    """Bool [seq_q, seq_k], or None where the rule is off; distance is key position minus query position."""
    return distance <= 0 if call.causal else None


def shown_by_window(distance: torch.Tensor, call: Call, place: Place) -> torch.Tensor | None:
    """Bool [seq_q, seq_k] or None."""
    if call.window_left < 0 and call.window_right < 0:
        return None
    left = call.window_left if call.window_left >= 0 else place.seq_q + place.seq_k
    right = call.window_right if call.window_right >= 0 else place.seq_q + place.seq_k
    return (distance >= -left) & (distance <= right)


def own_mask(mask: torch.Tensor, place: Place) -> torch.Tensor:
    """A mask's part for one sequence: [1 | Hq, 1 | seq_q, 1 | seq_k]."""
    return of_sequence(mask, place)


def shown_by_mask(own: torch.Tensor) -> torch.Tensor:
    """Bool, shaped as the part of the mask."""
    return own if own.dtype == torch.bool else own != float("-inf")


def shown_by_blocks(call: Call, place: Place) -> torch.Tensor | None:
    """Bool [1 | Hq, seq_q, seq_k] or None."""
    return None if call.block_mask is None else in_blocks(call, place)


def composed(parts: list[torch.Tensor]) -> torch.Tensor:
    """What all the parts show."""
    seen = parts[0]
    for part in parts[1:]:
        seen = seen & part
    return seen
