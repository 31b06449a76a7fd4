"""The oracle: attention in float64 on the numbers that the call holds, written apart from every kernel.

    s[i, j] = cap * tanh(scale * q_i . k_j / cap) + bias[i, j] - slope * |distance[i, j]|       over visible j
    lse[i]  = ln(sum_j exp(s[i, j]) + exp(sink))                 everything relative to the row's largest term
    p[i, j] = exp(s[i, j] - lse[i]),    out[i] = sum_j kept(p[i, j]) / (1 - p_drop) v_j

A row that sees nothing is exactly 0 with LSE -inf, or its sink. Computed on the device of the inputs, dense over
[B, Hq, Sq, Sk]: made for the sizes of tests. Not a backend, and no backend may import it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from attn_backends.conformance.problem import Problem, read_problem
from attn_backends.conformance.storing import is_wide, stored_lse, stored_out
from attn_backends.host.arguments import Arguments, arguments

MINUS_INF = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exact:
    """What is right.

    out: float64, shaped as `attention` returns it; lse: float64 [B, Hq, Sq] or packed [Hq, Tq]
    value_rms: root of the mean square of v over the keys that some row sees, for the absolute bound
    Packed rows that belong to no sequence are 0 and -inf.
    """

    out: torch.Tensor
    lse: torch.Tensor
    value_rms: float


def oracle(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> Exact:
    """The exact result of `attention(q, k, v, **given)`, on the device of q; arguments that do not matter are ignored.

    q, k, v and the arguments are those of `attention`, any layout, stride, dtype. Dropout needs its seed.
    Raises RequestError for a name that is no argument, ValueError for a descale that means nothing or two things.
    """
    with torch.no_grad():
        return _exact(q, k, v, arguments(given))


def oracle_gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_out: torch.Tensor,
    d_lse: torch.Tensor | None = None,
    **given: Any,
) -> dict[str, torch.Tensor]:
    """Exact gradients of sum(out * d_out) + sum(lse * d_lse), float64, each shaped as its tensor.

    d_out: as the output; d_lse: as the LSE, or None. Keys: "q", "k", "v" (those that are floats of two bytes or more),
    "bias" for a float mask, "sinks"; the names of `Grads`. Finite also where rows are empty.
    """
    a = arguments(given)
    bias = a.attn_mask if a.attn_mask is not None and a.attn_mask.is_floating_point() else None
    named = {"q": q, "k": k, "v": v, "bias": bias, "sinks": a.sinks}
    with torch.enable_grad():
        leaves = {name: _leaf(tensor) for name, tensor in named.items() if tensor is not None and is_wide(tensor)}
        a.attn_mask, a.sinks = leaves.get("bias", a.attn_mask), leaves.get("sinks", a.sinks)
        exact = _exact(leaves.get("q", q), leaves.get("k", k), leaves.get("v", v), a)
        outputs, upstream = [exact.out], [d_out.to(torch.float64)]
        if d_lse is not None:
            outputs, upstream = [*outputs, exact.lse], [*upstream, d_lse.to(torch.float64)]
        found = torch.autograd.grad(outputs, list(leaves.values()), upstream, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(torch.float64, copy=True).requires_grad_()


def _exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Arguments) -> Exact:
    problem = read_problem(q, k, v, a)
    found = solve(problem)
    return Exact(
        out=stored_out(found.out, problem, q, torch.float64),
        lse=stored_lse(found.lse, problem, q),
        value_rms=problem.value_rms,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """out [B, Hq, Sq, Dv], lse [B, Hq, Sq], weights [B, Hq, Sq, Sk] before dropout, 0 where nothing is seen.

    log_weights: their logarithms, of those too that are 0 because no float64 is as small; -inf where nothing is seen
    """

    out: torch.Tensor
    lse: torch.Tensor
    weights: torch.Tensor
    log_weights: torch.Tensor


def solve(p: Problem) -> Solution:
    """The formulas of this module on a problem."""
    scores = torch.where(p.visible, _scores(p), MINUS_INF)
    top = _top(scores, p.sinks)
    scores = scores - top.unsqueeze(-1)
    total = _log_sum(scores, None if p.sinks is None else p.sinks.reshape(-1, 1) - top)
    lse = torch.where(total == MINUS_INF, MINUS_INF, total + top)
    log_weights = scores - torch.where(total == MINUS_INF, 0.0, total).unsqueeze(-1)
    weights = torch.exp(log_weights)
    weights = torch.where(p.visible, weights, 0.0)
    kept = weights if p.keep is None else torch.where(p.keep, weights / (1.0 - p.dropout_p), 0.0)
    finite = p.v.isfinite()
    out = kept @ torch.where(finite, p.v, 0.0)
    if not bool(finite.all()):
        out = out + _of_non_finite(p, kept.detach())
    return Solution(out=out, lse=lse, weights=weights, log_weights=log_weights)


def _scores(p: Problem) -> torch.Tensor:
    """Everything that stands in the exponent, hidden keys included."""
    finite = p.k.isfinite().all(dim=-1, keepdim=True)
    product = p.q @ torch.where(finite, p.k, 0.0).transpose(-1, -2)
    if not bool(finite.all()):  # a key that only some rows see: its own column, and nothing else, is what it makes
        product = product + torch.where(finite.transpose(-1, -2), 0.0, (p.q @ p.k.transpose(-1, -2)).detach())
    scores = p.scale * product
    if p.softcap is not None:
        scores = p.softcap * torch.tanh(scores / p.softcap)
    for added in (p.bias, p.alibi):
        scores = scores if added is None else scores + added
    return scores


def _top(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """The largest score or sink of each row [B, Hq, Sq], 0 without any; no result depends on it but by rounding."""
    batch, heads, rows, _columns = scores.shape
    alone = scores.new_full((heads,), MINUS_INF) if sinks is None else sinks
    column = alone.reshape(1, heads, 1, 1).expand(batch, heads, rows, 1)
    top = torch.cat([scores, column], dim=-1).detach().amax(dim=-1)
    return torch.where(top == MINUS_INF, 0.0, top)


def _log_sum(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """ln of the sum of exponentials of scores and sinks [B, Hq, Sq]. Gradients stay finite where nothing is summed."""
    some = (scores != MINUS_INF).any(dim=-1)
    of_keys = torch.logsumexp(torch.where(some.unsqueeze(-1), scores, 0.0), dim=-1)
    if sinks is None:
        return torch.where(some, of_keys, MINUS_INF)
    has_sink = sinks != MINUS_INF
    both = torch.logaddexp(of_keys, torch.where(has_sink, sinks, 0.0))
    alone = torch.where(has_sink, sinks, MINUS_INF)
    return torch.where(some, torch.where(has_sink, both, of_keys), alone)


def _of_non_finite(p: Problem, weights: torch.Tensor) -> torch.Tensor:
    """What NaN and inf in v add to the rows that see them, [B, Hq, Sq, Dv], by plain arithmetic: 0 * inf is NaN."""
    odd = (~p.v.isfinite()).any(dim=-1).any(dim=0).any(dim=0).nonzero().flatten()  # keys
    v, visible = p.v[:, :, odd].unsqueeze(2), p.visible[..., odd].unsqueeze(-1)
    terms = weights[..., odd].unsqueeze(-1) * torch.where(v.isfinite(), 0.0, v)
    return torch.where(visible, terms, 0.0).sum(dim=3)
