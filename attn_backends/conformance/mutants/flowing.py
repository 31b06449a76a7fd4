"""Seams of the backward: delta, score gradients, products, sums over heads and broadcasts. Defaults of `Seams`."""

# ruff: noqa: ARG001  # a seam takes what the host has; its mutants need it
from __future__ import annotations

import torch

from attn_backends.call import Call


def delta(weights: torch.Tensor, d_weights: torch.Tensor, out: torch.Tensor, d_out: torch.Tensor) -> torch.Tensor:
    """rowsum(dO out) [Hq, Sq], as sum_j p_ij dP_ij, dP behind dropout."""
    return (weights * d_weights).sum(dim=-1)


def d_scores(weights: torch.Tensor, d_weights: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """P (dP + row) where row = d_lse - delta."""
    return weights * (d_weights + row.unsqueeze(-1))


def row_term(taken: torch.Tensor, d_lse: torch.Tensor | None) -> torch.Tensor:
    """d_lse - delta."""
    return -taken if d_lse is None else d_lse - taken


def cap_slope(scores: torch.Tensor, call: Call) -> torch.Tensor:
    """The derivative of the softcap at scaled scores."""
    if call.softcap is None:
        return torch.ones_like(scores)
    return 1.0 - torch.tanh(scores / call.softcap).square()


def d_query(flow: torch.Tensor, scale: float) -> torch.Tensor:
    """What multiplies K: flow is dS behind the softcap, hidden entries 0."""
    return flow * scale


def d_key(flow: torch.Tensor, scale: float) -> torch.Tensor:
    """What multiplies Q, transposed."""
    return flow.transpose(1, 2) * scale


def over_rows(weights: torch.Tensor) -> list[slice]:
    """The parts of the query rows that dK and dV are summed over, in order; weights are [Hq, keys, rows]."""
    return [slice(0, weights.shape[2])]


def by_kv_head(grads: torch.Tensor, own: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """[Hq, ...] summed into the KV heads that they read: [Hkv, ...]."""
    return grads.new_zeros((kv_heads, *grads.shape[1:])).index_add_(0, own, grads)


def into_mask(total: torch.Tensor, scores: torch.Tensor) -> None:
    """Add dS [Hq, Sq, Sk] to one sequence's part of the mask's gradient, summed over what that broadcasts."""
    total += scores.sum_to_size(total.shape)


def d_sinks(weight: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """[Hq] from the sink's weight and d_lse - delta, both [Hq, Sq]."""
    return (weight * row).sum(dim=1)
