"""Output and LSE of a prepared problem, differentiable in every tensor argument.

    s = scale * q k^T + mask, -inf where hidden;   w = softmax(s), 0 where hidden;   out = w v,   lse = ln sum_j exp(s_j)

In float32, float64 for float64. Hidden entries are filled, before and after the softmax: q.k of a hidden key may be inf
(any finite K is legal there), and inf + -inf would be NaN; so may dO.v on the way back, and 0 * inf would be NaN.
"""

from __future__ import annotations

import torch

from attn_backends.backends.torch_sdpa.problem import Problem


def attend(
    problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, with_lse: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out [B, Hq, rows, Dv] and, where asked, lse [B, Hq, rows]; both in float32, or float64 for float64."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    batch, heads, rows, _width = q.shape
    scores = torch.matmul(_stacked(q.to(wide), k), k.to(wide).mT).mul(problem.scale)
    scores = scores.reshape(batch, heads, rows, k.shape[2])
    hidden = _hidden(problem, mask, rows, k.shape[2])
    if mask is not None:
        scores = scores + mask
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    weights = scores.softmax(-1)
    if hidden is not None:
        weights = weights.masked_fill(hidden, 0.0)
    out = torch.matmul(_stacked(weights, v), v.to(wide)).reshape(batch, heads, rows, v.shape[3])
    return out, _log_sum(scores) if with_lse else None


def _stacked(rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """[B, Hq, rows, n] as [B, Hkv, group * rows, n]: the query heads of a group below each other."""
    batch, heads, count, width = rows.shape
    return rows.reshape(batch, like.shape[1], heads // like.shape[1] * count, width)


def _hidden(problem: Problem, mask: torch.Tensor | None, rows: int, keys: int) -> torch.Tensor | None:
    """bool, broadcasts to [B, Hq, rows, keys]; None where nothing is hidden."""
    if problem.causal:
        return torch.ones((rows, keys), dtype=torch.bool, device=problem.q.device).triu(1)
    return None if mask is None else mask.detach() == -torch.inf


def _log_sum(scores: torch.Tensor) -> torch.Tensor:
    """logsumexp whose gradient is exact at any size: torch's own is exp(score - result), where ln(n) drowns in -3e38."""
    top = scores.detach().amax(-1, keepdim=True)
    return (top + (scores - top).exp().sum(-1, keepdim=True).log()).squeeze(-1)
