"""Calls of the backend under test, with their evidence: the launch ledger must show it, or the call does not count."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch

import attn_backends
from attn_backends.call import Call
from attn_backends.conformance.case import Case
from attn_backends.conformance.case_request import needs_backward
from attn_backends.conformance.checks.check import Context
from attn_backends.conformance.drawing import generator
from attn_backends.conformance.inputs import Inputs
from attn_backends.host.arguments import Arguments, arguments
from attn_backends.host.dispatch import find_bound
from attn_backends.host.launch import Bound, bind_call
from attn_backends.host.reading import read_request
from attn_backends.registry.registry import default_registry


class NoEvidenceError(AssertionError):
    """A call returned and the ledger does not show the backend under test."""


class ReplacedOutputError(NoEvidenceError):
    """A kernel put a tensor of its own in the place of the memory that it was handed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """out and lse as `attention` returned them; lse None where it was not asked for."""

    out: torch.Tensor
    lse: torch.Tensor | None

    def parts(self) -> dict[str, torch.Tensor]:
        """out and, where there is one, lse, by name."""
        return {"out": self.out} if self.lse is None else {"out": self.out, "lse": self.lse}


def attend(context: Context, inputs: Inputs, **changes: Any) -> Answer:
    """`attention` on the inputs, forced onto the backend under test. Raises what it raises, and NoEvidenceError."""
    before = launches_of(context.backend)
    if context.probing:
        bound, given = _past_the_selector(context, inputs, changes)
        result: Any = bound(inputs.q, inputs.k, inputs.v, given)
    else:
        forced = {**inputs.given, "backend": context.backend, "policy": context.policy(), **changes}
        result = attn_backends.attention(inputs.q, inputs.k, inputs.v, **forced)
    _must_have_run(context, inputs, before)
    return _answer(result)


def attend_poisoned(context: Context, inputs: Inputs) -> Answer:
    """The forward alone, into memory that holds NaN on entry: whatever the kernel does not write is seen.

    Raises what the kernel raises, NoEvidenceError and ReplacedOutputError.
    """
    before = launches_of(context.backend)
    with torch.no_grad():
        bound, given = _bound(context, inputs)
        call = bound.call(inputs.q, inputs.k, inputs.v, given)
        call.owns_out = False  # as for a caller's `out`: this memory and no other is to be written
        handed = {"out": call.out, "lse": call.lse}
        for tensor in handed.values():
            if tensor is not None:
                tensor.fill_(math.nan)
        bound.run(call)
        _must_be_written(call, handed)
        answer = _answer(bound.result(call, given))
    _must_have_run(context, inputs, before)
    return answer


def _must_be_written(call: Call, handed: dict[str, torch.Tensor | None]) -> None:
    """`run` writes into the host's memory; what else it puts there may be an input's, or another call's."""
    for name, given in handed.items():
        found = getattr(call, name)
        if found is not given and (found is None or given is None or _place(found) != _place(given)):
            what = "nothing" if found is None else f"another tensor ({found.dtype} {list(found.shape)})"
            raise ReplacedOutputError(f"the kernel put {what} in the place of call.{name} instead of writing it")


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _bound(context: Context, inputs: Inputs) -> tuple[Bound, Arguments]:
    if context.probing:
        return _past_the_selector(context, inputs, {})
    given = arguments({**inputs.given, "backend": context.backend, "policy": context.policy()})
    return find_bound(inputs.q, inputs.k, inputs.v, given), given


def _past_the_selector(context: Context, inputs: Inputs, changes: dict[str, Any]) -> tuple[Bound, Arguments]:
    """A decision for the backend that nobody took, bound to its kernel."""
    given = arguments({**inputs.given, **changes})
    request, geometry = read_request(inputs.q, inputs.k, inputs.v, given)
    policy = context.policy(only=frozenset({context.backend}))
    decision = attn_backends.select(request, policy=policy, device=context.facts)
    taken = dataclasses.replace(decision, backend=context.backend, stored_id=f"probe {decision.id}")
    loaded = default_registry().load(context.backend)
    return bind_call(taken, loaded, request, inputs.q, given, geometry), given


def _answer(result: Any) -> Answer:
    out, lse = result if isinstance(result, tuple) else (result, None)
    return Answer(out=out, lse=lse)


def _must_have_run(context: Context, inputs: Inputs, before: int) -> None:
    """A call without query rows launches nothing."""
    if inputs.q.numel() and launches_of(context.backend) <= before:
        raise NoEvidenceError(f"the launch ledger shows no launch of {context.backend!r}")


def launches_of(backend: str) -> int:
    """Launches that the ledger counts for a backend, over all decisions."""
    records = attn_backends.launches().values()
    return sum(record.launches + record.captures for record in records if record.backend == backend)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Upstream:
    """Gradients of out and lse; either may be None."""

    out: torch.Tensor | None
    lse: torch.Tensor | None


def upstream(case: Case, answer: Answer) -> Upstream:
    """Normal numbers in the dtypes of the outputs."""

    def drawn(name: str, like: torch.Tensor) -> torch.Tensor:
        numbers = torch.randn(tuple(like.shape), generator=generator(case, name), dtype=torch.float64)
        return numbers.to(like.dtype).to(like.device)

    return Upstream(
        out=drawn("d_out", answer.out), lse=None if answer.lse is None else drawn("d_lse", answer.lse)
    )  # fmt: skip


def gradients(inputs: Inputs, answer: Answer, d: Upstream) -> dict[str, torch.Tensor]:
    """Gradients of every leaf of the inputs, by the names of `Grads`."""
    named = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "bias": inputs.given.get("attn_mask"),
             "sinks": inputs.given.get("sinks")}  # fmt: skip
    leaves = {name: tensor for name, tensor in named.items() if tensor is not None and tensor.requires_grad}
    pairs = ((answer.out, d.out), (answer.lse, d.lse))
    outputs = [(out, grad) for out, grad in pairs if out is not None and grad is not None and out.requires_grad]
    found = torch.autograd.grad(
        [out for out, _ in outputs], list(leaves.values()), [grad for _, grad in outputs], allow_unused=True
    )
    return {
        name: torch.zeros_like(leaf) if grad is None else grad  # type: ignore[redundant-expr]  # allow_unused gives None
        for (name, leaf), grad in zip(leaves.items(), found, strict=True)
    }


def everything(context: Context, case: Case, inputs: Inputs) -> dict[str, torch.Tensor]:
    """One call's out, lse and gradients (d_q, ...), copied out of whatever memory they came in."""
    answer = attend(context, inputs)
    found = answer.parts()
    if needs_backward(case):
        found |= {f"d_{name}": grad for name, grad in gradients(inputs, answer, upstream(case, answer)).items()}
    return {name: tensor.detach().clone() for name, tensor in found.items()}
