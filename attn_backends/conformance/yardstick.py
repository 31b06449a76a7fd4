"""`Yardstick`: what errors are ordinary for a call, by the numerics that its backend declares; no numbers of any backend.

| numerics | baseline | expected errors (sd) |
| --- | --- | --- |
| exact | naive, in the dtype of the call | the rounding model |
| quantized | the same behind the spec's quantiser | the rounding model, the spread of `DRAWS` of it, as it is or rotated, rows that it may turn |
| approximate | naive | the rounding model, and the bound that the spec states for all |

The tolerance makes bounds of it; what is right is the oracle's to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attn_backends.conformance.baseline import baseline, baseline_gradients
from attn_backends.conformance.oracle import Exact, oracle, solve
from attn_backends.conformance.problem import read_problem
from attn_backends.conformance.quantiser import DRAWS, FORMAT, RELATIVE, Quantiser
from attn_backends.conformance.rounding_model import expected_errors
from attn_backends.conformance.storing import is_wide, stored_out
from attn_backends.conformance.tolerance import SPEC_1_0
from attn_backends.host.arguments import arguments

# Spread of what e4m3 units lose of a sum's size each time they add to it; docs/kernels/fp8.md has the most.
UNIT = 2.0**-12

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Named = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Yardstick:
    """By name (out, lse; or those of `Grads`): the baseline's result, and the standard deviation of ordinary errors.

    A name that is missing has none: an LSE of exact numerics is judged by a bound of its own.
    """

    rough: Named
    expected: Named


def of_forward(numerics: str, tensors: Tensors, given: Mapping[str, Any], exact: Exact) -> Yardstick:
    """For out and lse of `attention(*tensors, **given)`."""
    expected = expected_errors(*tensors, **given)
    if numerics == "quantized":
        wanted = {"out": exact.out, "lse": exact.lse}
        rough = _answer(tensors, given, Quantiser())
        plain = _spread(wanted, lambda nth: _answer(tensors, given, Quantiser(draw=nth)))
        rotated = _spread(wanted, lambda nth: _answer(tensors, given, Quantiser(draw=nth, rotated=True)))
        drawn = {name: torch.maximum(plain[name], rotated[name]) for name in wanted}
        moved, turned = _by_scores(tensors, given)
        drawn["out"] = torch.maximum(drawn["out"], moved)
        return Yardstick(rough=rough, expected=_together(expected, drawn, {"out": turned}))
    rough = {"out": baseline(*tensors, **given).out}
    if numerics == "approximate":
        bound = {
            "out": torch.full_like(exact.out, SPEC_1_0.approximate * exact.value_rms),
            "lse": SPEC_1_0.approximate * (1.0 + _finite(exact.lse).abs()),
        }
        return Yardstick(rough={**rough, "lse": exact.lse}, expected=_together(expected, bound))
    return Yardstick(rough=rough, expected=expected)


def expected_of_forward(numerics: str, tensors: Tensors, given: Mapping[str, Any]) -> Named:
    """Only the expected errors of `of_forward`."""
    if numerics == "exact":
        return expected_errors(*tensors, **given)
    return of_forward(numerics, tensors, given, oracle(*tensors, **given)).expected


def of_gradients(
    numerics: str,
    tensors: Tensors,
    upstream: tuple[torch.Tensor, torch.Tensor | None],
    given: Mapping[str, Any],
    exact: Named,
) -> Yardstick:
    """For the gradients of a call, by their names; upstream: those of out and lse."""
    expected = expected_errors(*tensors, *upstream, **given)
    if numerics == "quantized":
        drawn = _spread(
            exact, lambda nth: baseline_gradients(*tensors, *upstream, quantiser=Quantiser(draw=nth), **given)
        )
        rough = baseline_gradients(*tensors, *upstream, quantiser=Quantiser(), **given)
        return Yardstick(rough=rough, expected=_together(expected, drawn))
    rough = baseline_gradients(*tensors, *upstream, **given)
    if numerics == "approximate":
        bound = {
            name: torch.full_like(wanted, SPEC_1_0.approximate * float(wanted.square().mean().sqrt()))
            for name, wanted in exact.items()
            if wanted.numel()
        }
        return Yardstick(rough=rough, expected=_together(expected, bound))
    return Yardstick(rough=rough, expected=expected)


def coarseness(numerics: str) -> float:
    """By how much a single number may be off, relative to itself, before anything is computed with it."""
    if numerics == "quantized":
        return torch.finfo(FORMAT).eps / 2
    return SPEC_1_0.approximate if numerics == "approximate" else 0.0


def _answer(tensors: Tensors, given: Mapping[str, Any], quantiser: Quantiser) -> dict[str, torch.Tensor]:
    rough = baseline(*tensors, quantiser=quantiser, **given)
    return {"out": rough.out, "lse": rough.lse}


def _spread(exact: Named, draw: Callable[[int], Named]) -> dict[str, torch.Tensor]:
    """Root of the mean square error over the draws, element by element; 0 where the exact result is infinite."""
    squares = {name: torch.zeros_like(wanted) for name, wanted in exact.items()}
    for nth in range(DRAWS):
        drawn = draw(nth)
        for name, wanted in exact.items():
            squares[name] += _finite(drawn[name].to(wanted) - wanted).square() / DRAWS
    return {name: total.sqrt() for name, total in squares.items()}


def _by_scores(tensors: Tensors, given: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """What a row of out misses because its scores err, and what more it may: a single error can move, or turn, a whole row.

    Scores err by sd_ij = RELATIVE sqrt(2) scale |q_i * k_j| (less where one came as codes), where a rotation may make of
    |q * k|^2 on average (|q|^2 |k|^2 + 2 (q k)^2) / (width + 2), by what an e4m3 unit loses of a sum, UNIT of
    sum_c |q_ic k_jc| for each step of its 32 products, and the row's LSE by their mean under p. Together up to four
    deviations: a key gains p sd by the roundings, which is the first sd here, times its distance from the output, and what
    the draws show but for luck; it may come up to min(1, p e^(4 sd)), of which three times the first cover p (1 + 3 sd).
    The rest, times the same distance, is the second. It is no deviation but a most, and yet counts as a deviation like the
    first, so that the tolerance allows two or three times it: keys of one row err together, through its query, and what is
    added up here are their squares.
    """
    a = arguments(dict(given))
    with torch.no_grad():
        problem = read_problem(*tensors, a)
        solved = solve(problem)
        weights, out, v = (_finite(part) for part in (solved.weights, solved.out, problem.v))
        quantised = sum(is_wide(tensor) for tensor in tensors[:2])
        q, k = problem.q, _finite(problem.k)
        rounded = RELATIVE * quantised**0.5 * abs(problem.scale) * _products(q, k, quantised == 2).sqrt()
        lost = abs(problem.scale) * _lost(q, k)
        rounded, lost = (torch.hypot(sd, (weights * sd).sum(dim=-1, keepdim=True)) for sd in (rounded, lost))
        sd = torch.hypot(rounded, lost)
        most = torch.exp((solved.log_weights + 4.0 * sd).clamp(max=0.0))  # as logarithms: no 0 times infinity
        gained = most - weights * (1.0 + 3.0 * rounded)
        moved = _spread_of(_finite(weights * rounded).clamp(max=1.0), v, out)
        turned = _spread_of(_finite(gained).clamp(min=0.0), v, out)
        return (
            stored_out(moved, problem, tensors[0], torch.float64),
            stored_out(turned, problem, tensors[0], torch.float64),
        )


def _spread_of(gained: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Root of sum_j (gained_ij (v_j - out_i))^2, number by number."""
    squares = gained.square()
    variance = squares @ v.square() - 2.0 * (squares @ v) * out + squares.sum(dim=-1, keepdim=True) * out.square()
    return variance.clamp(min=0.0).sqrt()


def _products(q: torch.Tensor, k: torch.Tensor, rotated: bool) -> torch.Tensor:
    """|q_i * k_j|^2 of every pair as they are, or where more, on average over all rotations of both."""
    k = k.transpose(-1, -2)
    squares = q.square(), k.square()
    plain = squares[0] @ squares[1]
    if not rotated:
        return plain
    sizes = squares[0].sum(dim=-1, keepdim=True) * squares[1].sum(dim=-2, keepdim=True)
    return torch.maximum(plain, (sizes + 2.0 * (q @ k).square()) / (q.shape[-1] + 2))


def _lost(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """What a unit that adds 32 products at a time, with few bits, loses of the sum of every pair."""
    share = UNIT * math.sqrt(q.shape[-1] / 32)
    return share * (q.abs() @ k.abs().transpose(-1, -2))


def _together(*sources: Named) -> dict[str, torch.Tensor]:
    """Independent errors: their squares add up."""
    names = dict.fromkeys(name for source in sources for name in source)
    return {
        name: torch.stack([source[name].square() for source in sources if name in source]).sum(dim=0).sqrt()
        for name in names
    }


def _finite(values: torch.Tensor) -> torch.Tensor:
    return values.nan_to_num(0.0, 0.0, 0.0)
