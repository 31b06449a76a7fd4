"""Value cases: the numbers that a call must give, per row, head, batch entry, in LSE and gradients."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attn_backends.conformance.field_cases.calling import Answer, Place, call_attention
from attn_backends.conformance.field_cases.comparing import compare, tolerance
from attn_backends.conformance.field_cases.outcome import Difference
from attn_backends.conformance.field_cases.reading import Case
from attn_backends.conformance.field_cases.rigs import Tensors

_LSE_KEYS = ("expect_lse", "expect_lse_heads", "expect_lse_batches")


def differences_of_value(case: Case, place: Place) -> list[Difference]:
    """Call and compare everything the case expects."""
    answer = call_attention(case, place, return_lse=any(key in case.table for key in _LSE_KEYS))
    tol = 0.0 if case.get("exact") else tolerance(case.get("atol", 2e-5), place.dtype)
    found = list(_outputs(case, answer, tol))
    if answer.lse is not None:
        found += _per_row(case, answer, answer.lse, "expect_lse", tol)
    if answer.grads is not None:
        found += _gradients(case, answer.grads, tol)
    return found


def _outputs(case: Case, answer: Answer, tol: float) -> Iterator[Difference]:
    explicit = case.get("rig") == "explicit"
    out = answer.out[..., 0] if explicit else answer.out
    yield from _per_row(case, answer, out, "expect", tol)
    first = answer.out if answer.out.dim() == 3 else answer.out[0]
    rows = case.get("expect_rows")
    if rows is not None:
        yield from compare("expect_rows", first[:, 0, : len(rows[0])], rows, tol)
    for row in case.get("exact_zero_rows", ()):
        yield from compare(f"exact zeros in row {row}", first[row], torch.zeros_like(first[row]).tolist(), 0.0)


def _per_row(case: Case, answer: Answer, tensor: torch.Tensor, key: str, tol: float) -> list[Difference]:
    """`tensor` is [B, S, H, ...] or packed [T, H, ...]; heads are dim 1 of one batch entry."""
    first = tensor if answer.out.dim() == 3 else tensor[0]
    found = []
    if key in case.table:
        found += compare(key, first[:, 0], case.get(key), tol)
    heads = case.get(f"{key}_heads")
    if heads is not None:
        found += compare(f"{key}_heads", first.transpose(0, 1)[: len(heads)], heads, tol)
    for index, rows in enumerate(case.get(f"{key}_batches", ())):
        found += compare(f"{key}_batches, entry {index}", answer.entry(tensor, index)[:, 0], rows, tol)
    return found


def _gradients(case: Case, grads: Tensors, tol: float) -> Iterator[Difference]:
    channel = case.get("channel", 0)
    for name, grad in grads._asdict().items():
        if case.get("grad_finite") and not bool(grad.isfinite().all()):
            yield Difference(what=f"d{name}", expected="finite", got="nan or inf")
        expected = case.get(f"expect_d{name}")
        if expected is not None:
            rows = (grad if grad.dim() == 3 else grad[0])[:, 0]
            yield from compare(f"expect_d{name}", rows if name == "v" else rows[:, channel], expected, tol)
