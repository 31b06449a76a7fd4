"""The arithmetic of the baseline: the textbook's steps, each rounded to one dtype, forward and backward.

Tensors are held in the work dtype (float32, or float64 for float64) and carry numbers of the rounded dtype alone, so
that a product of two of them has the same value on every device. Letters as in `Problem`. Used by `baseline` only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from attn_backends.conformance.problem import Problem
from attn_backends.conformance.storing import Gradients, by_kv_head

MINUS_INF = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """One dtype, and how a step's result gets into it."""

    dtype: torch.dtype

    @property
    def work(self) -> torch.dtype:
        """The dtype of products and sums inside a step."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """The values, rounded, in the work dtype."""
        return values.to(self.dtype).to(self.work)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forward:
    """What the backward needs again.

    q [B, Hq, Sq, D] scaled; k, v [B, Hq, Sk, D | Dv]; raw [B, Hq, Sq, Sk] before the softcap; weights before dropout
    out [B, Hq, Sq, Dv]; lse and sink_weights [B, Hq, Sq]
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    raw: torch.Tensor
    weights: torch.Tensor
    sink_weights: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor


def forward(p: Problem, rounded: Rounding, quantised: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Forward:
    """out and lse, step by step; `quantised`: what becomes of the weights before they are used."""
    q, k, v = rounded(rounded(p.q) * p.scale), rounded(p.k), rounded(p.v)
    raw = rounded(q @ k.transpose(-1, -2))
    scores = raw if p.softcap is None else rounded(p.softcap * rounded(torch.tanh(rounded(raw / p.softcap))))
    for added in (p.bias, p.alibi):
        scores = scores if added is None else rounded(scores + rounded(added))
    weights, sink_weights, lse = _softmax(scores, p, rounded)
    weights = weights if quantised is None else quantised(weights)
    out = rounded(drop(weights, p, rounded) @ v)
    return Forward(q=q, k=k, v=v, raw=raw, weights=weights, sink_weights=sink_weights, out=out, lse=lse)


def _softmax(scores: torch.Tensor, p: Problem, rounded: Rounding) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights and sink weights rounded, lse not: it is float32 whatever the dtype."""
    batch, heads, rows, _columns = scores.shape
    sinks = scores.new_full((heads,), MINUS_INF) if p.sinks is None else p.sinks.to(scores.dtype)
    column = sinks.reshape(1, heads, 1, 1).expand(batch, heads, rows, 1)
    logits = torch.cat([scores.masked_fill(~p.visible, MINUS_INF), column], dim=-1)
    lse = torch.logsumexp(logits, dim=-1)
    weights = torch.softmax(logits, dim=-1).masked_fill((lse == MINUS_INF).unsqueeze(-1), 0.0)
    return rounded(weights[..., :-1]), rounded(weights[..., -1]), lse


def drop(weights: torch.Tensor, p: Problem, rounded: Rounding) -> torch.Tensor:
    """Weights, or their gradients, behind dropout."""
    return weights if p.keep is None else rounded(weights / (1.0 - p.dropout_p)).masked_fill(~p.keep, 0.0)


def backward(p: Problem, f: Forward, d_out: torch.Tensor, d_lse: torch.Tensor | None, rounded: Rounding) -> Gradients:
    """The textbook's chain rule: d_out [B, Hq, Sq, Dv], d_lse [B, Hq, Sq] or None."""
    d_out = rounded(d_out)
    d_weights = drop(rounded(d_out @ f.v.transpose(-1, -2)), p, rounded)
    row = -(d_out * f.out).sum(dim=-1)
    row = row if d_lse is None else row + d_lse.to(row.dtype)
    d_scores = rounded(f.weights * (d_weights + row.unsqueeze(-1)))
    d_raw = d_scores
    if p.softcap is not None:
        d_raw = rounded(d_scores * rounded(1.0 - torch.tanh(f.raw / p.softcap).square()))
    return Gradients(
        q=rounded(rounded(d_raw @ f.k) * p.scale),
        k=rounded(by_kv_head(rounded(d_raw.transpose(-1, -2) @ f.q), p)),
        v=rounded(by_kv_head(rounded(drop(f.weights, p, rounded).transpose(-1, -2) @ d_out), p)),
        scores=d_scores,
        sinks=(f.sink_weights * row).sum(dim=(0, 2)),
    )
