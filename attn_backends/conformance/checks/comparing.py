"""Two answers side by side: to the last bit, or within what reordering a sum may cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from attn_backends.conformance.baseline import judged_dtype
from attn_backends.conformance.checks.calling import Answer
from attn_backends.conformance.checks.check import RIGHT, Context, Finding
from attn_backends.conformance.inputs import Inputs
from attn_backends.conformance.yardstick import expected_of_forward

ROUNDINGS = 16.0  # two results, each within 8 u rms(v) of the truth
EXPECTED = 6.0  # two results, each within 3 standard deviations
LSE = 2e-3  # two results, each within 1e-3


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal to the last bit, NaN and the sign of zero included."""
    return a.shape == b.shape and a.dtype == b.dtype and bool((_codes(a) == _codes(b)).all())


def _codes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(torch.uint8) if tensor.numel() else tensor.detach().flatten()


def bit_equal(got: Mapping[str, torch.Tensor], want: Mapping[str, torch.Tensor], what: str) -> Finding:
    """Every part bit-equal; `what` says what must not matter."""
    for name, wanted in want.items():
        if not same_bits(got[name], wanted):
            return Finding(ok=False, message=f"{name} depends on {what}: {_first_difference(got[name], wanted)}")
    return RIGHT


def _first_difference(got: torch.Tensor, want: torch.Tensor) -> str:
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype} {list(got.shape)} instead of {want.dtype} {list(want.shape)}"
    a, b = got.detach().to("cpu", torch.float64), want.detach().to("cpu", torch.float64)
    differ = ~((a == b) | (a.isnan() & b.isnan()))
    if not bool(differ.any()):
        return "only the sign of a zero, or the payload of a NaN"
    at = tuple(int(index) for index in differ.nonzero()[0])
    return f"{int(differ.sum())} of {differ.numel()} differ, first at {at}: {float(a[at]):.6g} instead of {float(b[at]):.6g}"


def near(
    context: Context, got: Answer, want: Answer, inputs: Inputs, what: str, value_rms: float, slack: float = 0.0
) -> Finding:
    """Both right to within the tolerance's absolute bound, hence within twice that of each other.

    That bound has a part for the errors to expect of the backend's numerics: scores so large that rounding them moves
    the weights, or a quantiser. `slack`: what the comparison itself may cost, as an rms over a row.
    """
    u = torch.finfo(judged_dtype(inputs.q, want.out.dtype)).eps / 2
    error = (got.out.detach().to(torch.float64) - want.out.detach().to(torch.float64)).square().mean(dim=-1).sqrt()
    expected = expected_of_forward(context.manifest.numerics, inputs.operands, inputs.given)
    size = max(value_rms, _largest(want.out.detach().to(torch.float64).abs()))
    allowed = EXPECTED * _largest(expected["out"]) + ROUNDINGS * u * size + slack
    worst = float(error.max()) if error.numel() else 0.0
    ratios = {"near": worst / allowed if allowed else float(worst > 0)}
    if not worst <= allowed:
        return Finding(
            ok=False, message=f"out depends on {what}: rms {worst:.3g}, {allowed:.3g} allowed", ratios=ratios
        )
    if want.lse is not None and got.lse is not None and not _lse_near(got.lse, want.lse, expected.get("lse")):
        return Finding(ok=False, message=f"lse depends on {what}", ratios=ratios)
    return Finding(ok=True, ratios=ratios)


def _largest(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _lse_near(got: torch.Tensor, want: torch.Tensor, expected: torch.Tensor | None) -> bool:
    more = 0.0 if expected is None else EXPECTED * _largest(expected)
    same = (got == want) | ((got - want).abs() <= LSE + LSE * want.abs() + more)
    return bool(same.all())


def first_wrong(findings: Iterable[Finding]) -> Finding:
    """The first finding that is not right, else one right finding with the largest ratio of each rule."""
    ratios: dict[str, float] = {}
    for finding in findings:
        for rule, ratio in finding.ratios.items():
            ratios[rule] = max(ratio, ratios.get(rule, 0.0))
        if not finding.ok:
            return Finding(ok=False, message=finding.message, ratios=ratios)
    return Finding(ok=True, ratios=ratios)
