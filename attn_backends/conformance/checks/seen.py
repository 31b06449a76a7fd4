"""Which keys each row of a case sees, worked out once more and apart from the oracle: sequence by sequence, rule by rule."""

from __future__ import annotations

import torch

from attn_backends.conformance.case import Case
from attn_backends.conformance.drawing import Logical


def seen_keys(logical: Logical) -> torch.Tensor:
    """Bool [B, Hq, Sq, Sk] in logical order, False for rows and keys that are not there."""
    case = logical.case
    seen = torch.zeros((case.batch, case.q_heads, case.seq_q, case.seq_k), dtype=torch.bool)
    for sequence, (rows, keys) in enumerate(zip(logical.lengths.q, logical.lengths.k, strict=True)):
        seen[sequence, :, :rows, :keys] = _by_position(case, rows, keys)
    if logical.mask is not None:
        shown = logical.mask if case.mask == "bool" else logical.mask != float("-inf")
        seen &= shown
    if logical.blocks is not None and case.block_mask is not None:
        by_row = logical.blocks.repeat_interleave(case.block_mask, dim=2)[:, :, : case.seq_q]
        seen &= by_row.repeat_interleave(case.block_keys, dim=3)[..., : case.seq_k]
    if logical.inside is not None:
        seen &= logical.inside
    return seen


def _by_position(case: Case, rows: int, keys: int) -> torch.Tensor:
    """Bool [rows, keys]: what causal and window leave."""
    first = 0 if case.top_left else keys - rows  # where query 0 stands
    stands = torch.arange(first, first + rows).unsqueeze(1)
    key = torch.arange(keys).unsqueeze(0)
    latest = stands if case.causal else torch.full_like(stands, keys)
    if case.right >= 0:
        latest = torch.minimum(latest, stands + case.right)
    shown = key <= latest
    return shown & (key >= stands - case.left) if case.left >= 0 else shown


def rows_of(logical: Logical) -> torch.Tensor:
    """Bool [B, Sq]: which query rows exist."""
    rows = torch.arange(logical.case.seq_q).unsqueeze(0)
    return rows < torch.tensor(logical.lengths.q).unsqueeze(1)


def logical_out(out: torch.Tensor, logical: Logical) -> torch.Tensor:
    """An output as [B, Sq, Hq, W] on the host, 0 where no row is."""
    case, held = logical.case, out.detach().cpu()
    if case.layout == "bhsd":
        return held.transpose(1, 2)
    if case.layout == "bshd":
        return held
    unpacked = held.new_zeros((case.batch, case.seq_q, *held.shape[1:]))
    unpacked[rows_of(logical)] = held[: sum(logical.lengths.q)]
    return unpacked


def logical_lse(lse: torch.Tensor, logical: Logical) -> torch.Tensor:
    """An LSE as [B, Sq, Hq] on the host, 0 where no row is."""
    held = lse.detach().cpu()
    if logical.case.layout == "thd":
        return logical_out(held.transpose(0, 1).unsqueeze(-1), logical).squeeze(-1)
    return held.transpose(1, 2)


def size_of(logical: Logical) -> float:
    """rms of the values, seen or not."""
    return float(logical.v.square().mean().sqrt()) if logical.v.numel() else 0.0
