"""Dense tensors as [batch, heads, seq, width], whatever the call's layout: views only, never a copy."""

from __future__ import annotations

import torch


def heads_first(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """A [B, H, S, D] view of a `bshd` or `bhsd` tensor; its own inverse."""
    return tensor if layout == "bhsd" else tensor.transpose(1, 2)


def seq_dim(layout: str) -> int:
    """Where the sequence lies in the caller's memory order."""
    return 2 if layout == "bhsd" else 1
