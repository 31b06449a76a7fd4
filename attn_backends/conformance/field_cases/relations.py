"""Property cases on tensors: a relation between two calls, and the checks that the format leaves to a runner."""

from __future__ import annotations

from collections.abc import Callable

import torch

import attn_backends
from attn_backends.conformance.field_cases.calling import Answer, Place, call_attention, prepared
from attn_backends.conformance.field_cases.comparing import close, same_bits, tolerance
from attn_backends.conformance.field_cases.outcome import Difference
from attn_backends.conformance.field_cases.reading import Case

_RELATIONS = ("bit-equal", "close", "different")


def differences_of_relation(case: Case, place: Place) -> list[Difference]:
    """Run the case and its variant, and hold outputs and LSE against each other."""
    relation = case.get("relation")
    if relation not in _RELATIONS:
        raise ValueError(f"case {case.id}: relation {relation!r} is none of {', '.join(_RELATIONS)}")
    variant = case.with_variant()
    a, b = (call_attention(one, place, return_lse=True) for one in (case, variant))
    tol = tolerance(case.get("atol", 2e-5), place.dtype)
    pairs = {"out": _pair(case, a, b, a.out, b.out)}
    if a.lse is not None and b.lse is not None:
        pairs["lse"] = _pair(case, a, b, a.lse, b.lse)
    if relation == "different":
        equal = all(same_bits(*pair) for pair in pairs.values())
        return [Difference(what="out and lse", expected="different", got="bit-equal")] if equal else []
    holds = same_bits if relation == "bit-equal" else lambda x, y: close(x, y, tol)
    return [
        Difference(what=name, expected=relation, got=_apart(*pair)) for name, pair in pairs.items() if not holds(*pair)
    ]


def _pair(
    case: Case, a: Answer, b: Answer, of_a: torch.Tensor, of_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        _part(a, of_a, case.get("batch_a"), case.get("rows_a")),
        _part(b, of_b, case.get("batch_b"), case.get("rows_b")),
    )


def _part(answer: Answer, tensor: torch.Tensor, batch: int | None, rows: list[int] | None) -> torch.Tensor:
    chosen = answer.entry(tensor, batch)
    if rows is None:
        return chosen
    row_dim = 1 if batch is None and answer.sequences is None else 0
    return chosen.index_select(row_dim, torch.tensor(rows, device=chosen.device))


def _apart(a: torch.Tensor, b: torch.Tensor) -> str:
    if a.shape != b.shape:
        return f"shapes {list(a.shape)} and {list(b.shape)}"
    equal = (a == b) | (a.isnan() & b.isnan())
    first = tuple((~equal).nonzero()[0].tolist()) if not bool(equal.all()) else None
    if first is None:
        return "zeros of different sign"
    return f"{int((~equal).sum())} of {a.numel()} differ; at {first}: {a[first].item()} and {b[first].item()}"


def differences_of_repeat(case: Case, place: Place) -> list[Difference]:
    """The same call twice is bit-equal."""
    a, b = (call_attention(case, place, return_lse=True) for _ in range(2))
    pairs = [("out", a.out, b.out)]
    if a.lse is not None and b.lse is not None:
        pairs.append(("lse", a.lse, b.lse))
    return [
        Difference(what=name, expected="bit-equal", got=_apart(x, y)) for name, x, y in pairs if not same_bits(x, y)
    ]


def differences_of_inputs(case: Case, place: Place) -> list[Difference]:
    """Inputs are never modified."""
    tensors, given = prepared(case, place)
    named = {**tensors._asdict(), **{name: value for name, value in given.items() if isinstance(value, torch.Tensor)}}
    before = {name: tensor.clone() for name, tensor in named.items()}
    attn_backends.attention(*tensors, **given)
    return [
        Difference(what=name, expected="untouched", got="modified")
        for name, tensor in named.items()
        if not same_bits(tensor, before[name])
    ]


CHECKS: dict[str, Callable[[Case, Place], list[Difference]]] = {
    "relation": differences_of_relation,
    "repeat": differences_of_repeat,
    "inputs-unmodified": differences_of_inputs,
}
