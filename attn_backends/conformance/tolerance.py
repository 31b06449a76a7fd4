"""The tolerance of spec 1.0: one rule for every backend, no numbers of its own for any.

With e = got - exact, e_base = baseline - exact, sd the standard deviation that rounding is expected to have here
(`rounding_model`) and u the unit roundoff of the judged dtype, all must hold:

    finite    infinities where the exact result has them, finite everywhere else
    empty     a row that is exactly 0 is exactly 0 (outputs)
    element   |e| <= 2 max(|e_base|, sd) + u |exact| + 1e-6          the maximum is the tensor's
    row       rms(e) <= 3 max(rms(e_base), rms(sd), u rms(exact))
    whole     rms(e) <= 1.5 max(rms(e_base), rms(sd)) + u/2 rms(exact)
    absolute  rms(e) <= max(8 u rms(v), 3 rms(sd)), row by row (outputs)
    lse       |e| <= 1e-3 + 1e-3 |exact| (the LSE, instead of the four above)

Gradients have 3, 4 and 2 for 2, 3 and 1.5. A row is the last dim. Where sd is not given it counts as 0. What e_base and sd
are follows from the numerics that a backend declares (`yardstick`); where these leave an error in the LSE, its bound is
wider by 3 max(|e_base|, sd). A reference that is NaN is a failure of the test, and raises. Every rule's worst ratio of measured to allowed is kept, so that other
constants can be tried on old reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

What = Literal["out", "lse", "grad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """The numbers of one version of the spec."""

    spec: str = "1.0"
    element: float = 2.0
    row: float = 3.0
    whole: float = 1.5
    grad_element: float = 3.0
    grad_row: float = 4.0
    grad_whole: float = 2.0
    whole_exact: float = 0.5  # times u rms(exact)
    least: float = 1e-6  # absolute, for one element
    values: float = 8.0  # times u rms(v)
    expected: float = 3.0  # times rms(sd), where scores are ill-conditioned; times max(|e_base|, sd) of an LSE
    lse: float = 1e-3  # absolute and relative
    approximate: float = 0.05  # of rms(v), of an LSE and of a gradient's rms: sd under `approximate`


SPEC_1_0 = Constants()


class BadReferenceError(ValueError):
    """The exact result or the baseline cannot be judged against: the test is at fault, not the backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a result is right, and by how much.

    rule: the first rule that is broken, or None; ratios: measured over allowed per rule, at its worst place, 1 = just
    allowed; worst: the index there, of the broken rule or else of the largest ratio; message: one line for a report
    """

    ok: bool
    rule: str | None
    ratios: dict[str, float]
    worst: tuple[int, ...]
    message: str


def judge(
    got: torch.Tensor,
    exact: torch.Tensor,
    base: torch.Tensor | None,
    dtype: torch.dtype,
    what: What = "out",
    *,
    value_rms: float | None = None,
    expected: torch.Tensor | None = None,
    constants: Constants = SPEC_1_0,
) -> Verdict:
    """Judge one tensor of a result against the exact one, by the rules of the spec.

    got: any float dtype; exact: float64, from the oracle; base: the baseline's, or None for an exact LSE; all of one shape
    dtype: the judged dtype (`baseline.judged_dtype`); value_rms: `Exact.value_rms`, needed for "out"
    expected: from a `Yardstick`, or None for no such floor
    Raises BadReferenceError for a NaN in exact or base, and for a base that is not finite where exact is.
    """
    if what != "lse" and base is None:
        raise BadReferenceError(f"{what} is judged beside a baseline, and there is none")
    if what == "out" and value_rms is None:
        raise BadReferenceError("an output is judged beside rms(v), and value_rms is not given")
    if got.shape != exact.shape:
        return _unshapely(got, exact)
    case = _Case.of(got, exact, base, expected)
    rules = [_finite(case)]
    if what == "lse":
        rules.append(_lse(case, constants))
    else:
        rules += [_empty(case)] if what == "out" else []
        rules += _by_baseline(case, torch.finfo(dtype).eps / 2, what == "grad", constants)
        if what == "out" and value_rms is not None:
            rules.append(_absolute(case, torch.finfo(dtype).eps / 2 * value_rms, constants))
    return _verdict(case, rules)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Case:
    """Everything in float64 with at least one dim; where exact is infinite, error and exact count as 0 in rms."""

    got: torch.Tensor
    exact: torch.Tensor
    error: torch.Tensor  # |got - exact|
    base_error: torch.Tensor
    expected: torch.Tensor  # sd
    size: torch.Tensor  # |exact|
    infinite: torch.Tensor

    @classmethod
    def of(
        cls, got: torch.Tensor, exact: torch.Tensor, base: torch.Tensor | None, expected: torch.Tensor | None
    ) -> _Case:
        """Raises BadReferenceError."""
        exact = torch.atleast_1d(exact.detach().to(torch.float64))
        got = torch.atleast_1d(got.detach().to(exact.device, torch.float64))
        base = exact if base is None else torch.atleast_1d(base.detach().to(exact.device, torch.float64))
        expected = torch.zeros_like(exact) if expected is None else torch.atleast_1d(expected.to(exact.device))
        infinite = exact.isinf()
        if bool(exact.isnan().any()) or bool(base.isnan().any()):
            raise BadReferenceError("the reference holds NaN: the test is wrong, whatever the backend did")
        if base.shape != exact.shape or bool((base.isinf() & ~infinite).any()):
            raise BadReferenceError("the baseline has another shape, or overflows where the exact result is finite")
        counted = ~infinite
        return cls(
            got=got,
            exact=exact,
            error=torch.where(counted, (got - exact).abs(), 0.0),
            base_error=torch.where(counted, (base - exact).abs(), 0.0),
            expected=torch.where(counted, expected, 0.0),
            size=torch.where(counted, exact.abs(), 0.0),
            infinite=infinite,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rule:
    """One rule at every place where it holds: measured <= allowed."""

    name: str
    measured: torch.Tensor
    allowed: torch.Tensor

    @property
    def ratio(self) -> torch.Tensor:
        """Measured over allowed; 0 where both are 0, inf where nothing is allowed or nothing was measurable."""
        ratio = torch.where(self.measured == 0, 0.0, self.measured / self.allowed)
        return ratio.nan_to_num(nan=float("inf"), posinf=float("inf"))


def _finite(case: _Case) -> _Rule:
    wrong = torch.where(case.infinite, case.got != case.exact, ~case.got.isfinite())
    return _Rule(name="finite", measured=wrong.to(torch.float64), allowed=torch.zeros_like(case.exact))


def _empty(case: _Case) -> _Rule:
    empty = (case.exact == 0).all(dim=-1, keepdim=True)
    return _Rule(name="empty", measured=torch.where(empty, case.got.abs(), 0.0), allowed=torch.zeros_like(case.exact))


def _lse(case: _Case, c: Constants) -> _Rule:
    noise = torch.maximum(case.base_error, case.expected)
    most = noise.max() if noise.numel() else noise.sum()
    return _Rule(name="lse", measured=case.error, allowed=c.lse + c.lse * case.size + c.expected * most)


def _by_baseline(case: _Case, u: float, gradient: bool, c: Constants) -> list[_Rule]:
    element, row, whole = (
        (c.grad_element, c.grad_row, c.grad_whole) if gradient else (c.element, c.row, c.whole)
    )  # fmt: skip
    noise = torch.maximum(case.base_error, case.expected)
    most = noise.max() if noise.numel() else noise.sum()
    rows = torch.maximum(_rms(case.base_error), _rms(case.expected))
    of_rows = torch.maximum(rows, u * _rms(case.size))
    of_tensor = torch.maximum(_rms(case.base_error.flatten()), _rms(case.expected.flatten()))
    of_whole = whole * of_tensor + c.whole_exact * u * _rms(case.size.flatten())
    return [
        _Rule(name="element", measured=case.error, allowed=element * most + u * case.size + c.least),
        _Rule(name="row", measured=_rms(case.error), allowed=row * of_rows),
        _Rule(name="whole", measured=_rms(case.error.flatten()), allowed=of_whole),
    ]


def _absolute(case: _Case, u_values: float, c: Constants) -> _Rule:
    rows = _rms(case.error)
    allowed = (c.expected * _rms(case.expected)).clamp(min=c.values * u_values)
    return _Rule(name="absolute", measured=rows, allowed=allowed)


def _rms(values: torch.Tensor) -> torch.Tensor:
    """Root of the mean square over the last dim; 0 over nothing."""
    return values.square().sum(dim=-1).div(max(values.shape[-1], 1)).sqrt()


def _verdict(case: _Case, rules: list[_Rule]) -> Verdict:
    ratios = {rule.name: float(rule.ratio.max()) if rule.ratio.numel() else 0.0 for rule in rules}
    broken = next((rule for rule in rules if ratios[rule.name] > 1.0), None)
    told = broken or max(rules, key=lambda rule: ratios[rule.name])
    worst = _place_of_largest(told.ratio if told.ratio.dim() else case.error)
    if broken is None:
        text = f"right; nearest to its bound is {told.name}, at {ratios[told.name]:.2g} of it"
        return Verdict(ok=True, rule=None, ratios=ratios, worst=worst, message=text)
    return Verdict(ok=False, rule=broken.name, ratios=ratios, worst=worst, message=_told(case, broken, worst))


def _told(case: _Case, rule: _Rule, worst: tuple[int, ...]) -> str:
    """`row: 0.031 where 0.002 is allowed, at (0, 3, 1); there got [...], exact [...]`."""
    at = worst if rule.measured.dim() else ()
    measured, allowed = float(rule.measured[at]), float(rule.allowed[at])
    got, exact = ([f"{x:.6g}" for x in torch.atleast_1d(t[worst])[:4].tolist()] for t in (case.got, case.exact))
    bound = f"{measured:.3g} where {allowed:.3g} is allowed" if rule.name not in ("finite", "empty") else "not kept"
    return f"{rule.name}: {bound}, at {worst}; there got {', '.join(got)}, exact {', '.join(exact)}"


def _place_of_largest(ratio: torch.Tensor) -> tuple[int, ...]:
    if not ratio.numel():
        return ()
    left, place = int(ratio.argmax()), []
    for size in reversed(ratio.shape):  # torch.unravel_index would import sympy, which takes seconds
        left, index = divmod(left, size)
        place.append(index)
    return tuple(reversed(place))


def _unshapely(got: torch.Tensor, exact: torch.Tensor) -> Verdict:
    text = f"shape: got {list(got.shape)}, exact {list(exact.shape)}"
    return Verdict(ok=False, rule="shape", ratios={}, worst=(), message=text)
