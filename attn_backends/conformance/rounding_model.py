"""How large a rounding error is ordinary, element by element, by arithmetic instead of by luck.

One run of a baseline is one draw: where a single score decides a row, its error may be tiny by chance, and a rule that
allows three times as much would fail a good kernel. So the tolerance also knows the error to expect of a kernel that
accumulates in float32 and rounds weights, output and score gradients to the dtype of the call. Errors are first order
and independent, so variances add:

    score s_ij   ds = u32 (scale sum_d |q_d k_d| + |bias| + |alibi| + |lse| + 1), at most 1/16
    weight p_ij  p ds, which moves the row as a whole;  dp^2 = (u p)^2 + tiny^2 by rounding, which does not
    lse_i        dl = 2 u32 (|lse| + 1), at most 1/16, relative, for all weights of the row and its sink
    out          sum_j (p ds)^2 (z v_j - out)^2 + sum_j (dp z v_j)^2 + (n sum_j |p z v_j|)^2 + (dl out)^2    z: dropout
    delta_i      u sum_d |dO_d out_d|,  sqrt(sum_j (p ds (z dP - delta))^2),  dl delta     delta = dO . out, of the row
    dS_ij        (p ds + dp) |z dP + d_lse - delta|,  u32 p z sum_d |dO_d v_d|,  p delta's,  tiny
    dq, dk, dv   the sums that make them, with squares, and n times the sum of the magnitudes; dv and sinks with dl too

dl is there because a float32 LSE moves all weights exp(s - lse) of a row together, and merges of split keys do it too.
z is 0 or 1/(1-p_drop).

u is the unit roundoff of the dtype, u32 that of float32 (of float64 for float64), tiny what underflows, n = u32
sqrt(1 + terms / 16) what a sum loses by its order. Gives standard deviations in float64; says nothing about right and
wrong. Letters as in `Problem`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from attn_backends.conformance.baseline import judged_dtype
from attn_backends.conformance.oracle import Solution, solve
from attn_backends.conformance.problem import Problem, read_problem
from attn_backends.conformance.storing import Gradients, by_kv_head, logical_lse, stored_gradients, stored_out
from attn_backends.host.arguments import arguments


def expected_errors(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_out: torch.Tensor | None = None,
    d_lse: torch.Tensor | None = None,
    **given: Any,
) -> dict[str, torch.Tensor]:
    """Standard deviations of the rounding error, float64: "out", and with d_out the gradients by their names.

    Arguments as for the oracle; each tensor is shaped as what it is about.
    """
    a = arguments(given)
    with torch.no_grad():
        problem = read_problem(q, k, v, a)
        model = _Model.of(problem, solve(problem), judged_dtype(q))
        found = {"out": stored_out(model.of_out().sqrt(), problem, q, torch.float64)}
        if d_out is not None:
            variances = model.of_gradients(problem.queries.take(d_out), logical_lse(d_lse, problem))
            stored = stored_gradients(variances, problem, (q, k, v), a, torch.float64)
            found |= {name: variance.sqrt() for name, variance in stored.items()}
        return found


_MOST = 1 / 16  # beyond that a weight is anything, and a bound that follows the score would bound nothing
_TERMS_AT_ONCE = 16  # a matrix unit adds that many products before it rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Units:
    """Relative errors of one rounding to the dtype and to the accumulator, and what either loses to underflow."""

    u: float
    u32: float
    tiny: float

    @classmethod
    def of(cls, dtype: torch.dtype) -> _Units:
        own, single = torch.finfo(dtype), torch.finfo(torch.float32)
        work = own if dtype == torch.float64 else single
        return cls(u=own.eps / 2, u32=work.eps / 2, tiny=max(work.smallest_normal, own.smallest_normal * own.eps))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Model:
    """A solved problem, all finite, and the errors of its weights; [B, Hq, Sq, Sk] where not said otherwise."""

    p: Problem
    k: torch.Tensor
    v: torch.Tensor
    weights: torch.Tensor
    kept: torch.Tensor  # z_ij
    sinks: torch.Tensor  # weights of the sinks [B, Hq, Sq]
    out: torch.Tensor
    units: _Units
    by_score: torch.Tensor  # (p ds)^2
    by_rounding: torch.Tensor  # dp^2
    by_lse: torch.Tensor  # dl^2 [B, Hq, Sq, 1]

    @classmethod
    def of(cls, p: Problem, s: Solution, dtype: torch.dtype) -> _Model:
        units = _Units.of(dtype)
        k, lse, weights = (tensor.nan_to_num(0.0, 0.0, 0.0) for tensor in (p.k, s.lse, s.weights))
        size = abs(p.scale) * (p.q.abs() @ k.abs().transpose(-1, -2)) + lse.abs().unsqueeze(-1) + 1.0
        for added in (p.bias, p.alibi):
            size = size if added is None else size + added.abs()
        return cls(
            p=p,
            k=k,
            v=p.v.nan_to_num(0.0, 0.0, 0.0),
            weights=weights,
            kept=torch.ones_like(weights) if p.keep is None else p.keep / (1.0 - p.dropout_p),
            sinks=torch.zeros_like(lse) if p.sinks is None else torch.exp(p.sinks.unsqueeze(-1) - lse),
            out=s.out.nan_to_num(0.0, 0.0, 0.0),
            units=units,
            by_score=(weights * (units.u32 * size).clamp(max=_MOST)).square(),
            by_rounding=((units.u * weights).square() + units.tiny**2) * p.visible,
            by_lse=(2.0 * units.u32 * (lse.abs() + 1.0)).clamp(max=_MOST).square().unsqueeze(-1),
        )

    def of_out(self) -> torch.Tensor:
        """Variance of out [B, Hq, Sq, Dv]."""
        squares = (self.by_score * self.kept.square()) @ self.v.square()
        crossed = (self.by_score * self.kept) @ self.v
        moved = squares - 2.0 * crossed * self.out + self.by_score.sum(dim=-1, keepdim=True) * self.out.square()
        rounded = (self.by_rounding * self.kept.square()) @ self.v.square()
        together = self.by_lse * self.out.square()
        return moved.clamp(min=0.0) + rounded + together + self._of_sum(self.weights * self.kept, self.v)

    def of_gradients(self, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Gradients:
        """Variances of the gradients for d_out [B, Hq, Sq, Dv] and d_lse [B, Hq, Sq]."""
        delta = (d_out * self.out).sum(dim=-1, keepdim=True)
        row = -delta if d_lse is None else d_lse.unsqueeze(-1) - delta
        slope = self.kept * (d_out @ self.v.transpose(-1, -2)) + row
        d_scores = self.weights * slope
        of_delta = (self.units.u * (d_out.abs() * self.out.abs()).sum(dim=-1, keepdim=True)).square()
        of_delta = of_delta + (self.by_score * slope.square()).sum(dim=-1, keepdim=True)
        of_delta = of_delta + self.by_lse * delta.square()
        own = self._of_scores(d_out, slope) + (self.units.u * d_scores).square()
        by_key = own + self.weights.square() * of_delta
        of_weights = self.by_score + self.by_rounding + self.by_lse * self.weights.square()
        of_weights = of_weights * self.kept.square()
        of_q = own @ self.k.square() + of_delta * (self.weights @ self.k).square() + self._of_sum(d_scores, self.k)
        of_k = _flipped(by_key) @ self.p.q.square() + self._of_sum(_flipped(d_scores), self.p.q)
        of_v = _flipped(of_weights) @ d_out.square() + self._of_sum(_flipped(self.weights * self.kept), d_out)
        of_row = of_delta + (self.units.u32 * row).square() + self.by_lse * row.square()
        of_sinks = self.sinks.square() * of_row.squeeze(-1)
        return Gradients(
            q=self.p.scale**2 * of_q,
            k=by_kv_head(self.p.scale**2 * of_k, self.p),
            v=by_kv_head(of_v, self.p),
            scores=by_key,
            sinks=of_sinks.sum(dim=(0, 2)),
        )

    def _of_scores(self, d_out: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
        """What weights and dP leave in dS, delta's error apart."""
        size = self.kept * (d_out.abs() @ self.v.abs().transpose(-1, -2))
        of_product = (self.units.u32 * self.weights * size).square()
        return (self.by_score + self.by_rounding) * slope.square() + of_product + self.units.tiny**2 * self.p.visible

    def _of_sum(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Variance of a product by its order of summation."""
        order = 1.0 + left.shape[-1] / _TERMS_AT_ONCE
        return order * (self.units.u32 * (left.abs() @ right.abs())).square()


def _flipped(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.transpose(-1, -2)
