"""Numbers against numbers: tolerance by dtype, infinities exact, every column of a row."""

from __future__ import annotations

from typing import Any

import torch

from attn_backends.conformance.field_cases.outcome import Difference

_LEAST = {"float16": 3e-3, "bfloat16": 2e-2}


def tolerance(atol: float, dtype: str) -> float:
    """The case's tolerance, or the dtype's if that is larger."""
    return max(atol, _LEAST.get(dtype, 0.0))


def compare(what: str, got: torch.Tensor, expected: Any, tol: float) -> list[Difference]:
    """Rows against one number each; further dims of `got` (columns) must all carry it. tol 0: exactly."""
    want = torch.tensor(expected, dtype=torch.float64)
    have = got.detach().to("cpu", torch.float64)
    if tuple(have.shape[: want.dim()]) != tuple(want.shape):
        return [Difference(what=f"{what}, shape", expected=list(want.shape), got=list(have.shape[: want.dim()]))]
    full = want.reshape(*want.shape, *(1,) * (have.dim() - want.dim())).expand_as(have)
    same = (have == full) | (have.isnan() & full.isnan())
    near = (have - full).abs() <= tol + tol * full.abs()
    if bool((same | (near & full.isfinite())).all()):
        return []
    first = have.reshape(*want.shape, -1)
    wrong = ~(same | (near & full.isfinite()))
    worst = first.gather(-1, wrong.reshape(*want.shape, -1).to(torch.int8).argmax(-1, keepdim=True)).squeeze(-1)
    return [Difference(what=what, expected=expected, got=worst.tolist())]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal to the last bit."""
    return a.shape == b.shape and a.dtype == b.dtype and _bytes(a) == _bytes(b)


def close(a: torch.Tensor, b: torch.Tensor, tol: float) -> bool:
    """Whether two tensors are equal within the tolerance, infinities exactly."""
    return a.shape == b.shape and not compare("", a, b.to("cpu", torch.float64).tolist(), tol)


def _bytes(tensor: torch.Tensor) -> list[int]:
    codes: list[int] = tensor.detach().cpu().flatten().contiguous().view(torch.uint8).tolist()
    return codes
