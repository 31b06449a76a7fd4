"""Output and LSE of a prepared problem, differentiable in every tensor argument."""

from __future__ import annotations

import torch

from attn_backends.backends.torch_sdpa.problem import Problem

_MATH = torch.ops.aten._scaled_dot_product_attention_math


def attend(
    problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """softmax(scale * q k^T + mask) v: [B, Hq, rows, Dv]."""
    grouped = q.shape[1] != k.shape[1]
    out: torch.Tensor = _MATH(q, k, v, mask, 0.0, problem.causal, scale=problem.scale, enable_gqa=grouped)[0]
    return out


def log_sum_exp(
    problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """log sum_j exp(scale * q k_j + mask_j): [B, Hq, rows], in float32 or float64."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    batch, heads, rows, width = q.shape
    by_group = q.to(wide).reshape(batch, k.shape[1], heads // k.shape[1], rows, width)
    keys = k.to(wide).unsqueeze(2)
    scores = torch.matmul(by_group, keys.mT).mul(problem.scale).reshape(batch, heads, rows, k.shape[2])
    if problem.causal:
        hidden = torch.ones((rows, k.shape[2]), dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    if mask is not None:
        scores = scores + mask
    return _log_sum(scores)


def _log_sum(scores: torch.Tensor) -> torch.Tensor:
    """logsumexp whose gradient is exact at any size: torch's own is exp(score - result), where ln(n) drowns in -3e38."""
    top = scores.detach().amax(-1, keepdim=True)
    return (top + (scores - top).exp().sum(-1, keepdim=True).log()).squeeze(-1)
