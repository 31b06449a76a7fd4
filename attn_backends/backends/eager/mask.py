"""Which keys a query row may see, and what is added to their scores.

Query i of a sequence stands at key position i + (seq_k - seq_q) (`bottom_right`) or i (`top_left`). Causal, windows and
ALiBi hang on that one diagonal; they, masks and the block mask compose by intersection. -inf in a float mask hides
its key like False; the lowest finite number does not.
"""

from __future__ import annotations

import torch

from attn_backends.backends.eager.sequences import Sequence
from attn_backends.block_mask import corner, sequence_entry
from attn_backends.call import Call


def distances(call: Call, sequence: Sequence) -> torch.Tensor:
    """int64 [seq_q, seq_k]: key position minus the query's own position; 0 on the diagonal."""
    offset = sequence.seq_k - sequence.seq_q if call.causal_alignment == "bottom_right" else 0
    device = call.q.device
    query_position = torch.arange(sequence.seq_q, device=device) + offset
    return torch.arange(sequence.seq_k, device=device) - query_position.unsqueeze(1)


def bias_of(call: Call, sequence: Sequence) -> torch.Tensor | None:
    """The float mask of a sequence [Hq | 1, seq_q | 1, seq_k | 1], or None where there is none."""
    if call.attn_mask is None or call.attn_mask.dtype == torch.bool:
        return None
    return corner(sequence_entry(call.attn_mask, sequence.index), sequence.seq_q, sequence.seq_k)[0]


def visible_keys(call: Call, sequence: Sequence, heads: int, distance: torch.Tensor) -> torch.Tensor:
    """Which row sees which key: bool [Hq, seq_q, seq_k], contiguous."""
    visible = _within_diagonal(call, distance).unsqueeze(0)
    bias = bias_of(call, sequence)
    if bias is not None:
        visible = visible & (bias != float("-inf"))
    elif call.attn_mask is not None:
        visible = visible & corner(sequence_entry(call.attn_mask, sequence.index), sequence.seq_q, sequence.seq_k)[0]
    if call.block_mask is not None:
        visible = visible & call.block_mask.of_sequence(sequence.index, sequence.seq_q, sequence.seq_k)
    return visible.expand(heads, sequence.seq_q, sequence.seq_k).contiguous()


def _within_diagonal(call: Call, distance: torch.Tensor) -> torch.Tensor:
    visible = torch.ones_like(distance, dtype=torch.bool)
    if call.causal:
        visible &= distance <= 0
    if call.window_left >= 0:
        visible &= distance >= -call.window_left
    if call.window_right >= 0:
        visible &= distance <= call.window_right
    return visible


def add_reduced(total: torch.Tensor, scores: torch.Tensor) -> None:
    """Add a gradient [Hq, seq_q, seq_k] to a view [1, Hq | 1, seq_q | 1, seq_k | 1], summed where that broadcasts."""
    summed = [dim for dim in range(3) if total.shape[dim + 1] == 1]
    total += scores.sum(dim=summed, keepdim=True) if summed else scores
