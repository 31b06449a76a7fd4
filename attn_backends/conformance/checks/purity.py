"""What a call may not do to memory: write its inputs, hand out views of them, or share one output between two calls."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from attn_backends.conformance.case import Case
from attn_backends.conformance.case_request import needs_backward
from attn_backends.conformance.checks.calling import attend, gradients, upstream
from attn_backends.conformance.checks.check import Check, Context, Finding
from attn_backends.conformance.checks.comparing import near, same_bits
from attn_backends.conformance.inputs import Inputs, make_inputs


def unmodified(context: Context, case: Case) -> Finding:
    """Every byte of every input's storage is what it was, after forward and backward."""
    inputs = make_inputs(case, context.device)
    watched = dict(inputs.tensors())
    before = {name: _storage(tensor) for name, tensor in watched.items()}
    answer = attend(context, inputs)
    if needs_backward(case):
        d = upstream(case, answer)
        watched |= {f"d_{name}": tensor for name, tensor in (("out", d.out), ("lse", d.lse)) if tensor is not None}
        before |= {name: _storage(watched[name]) for name in watched if name not in before}
        gradients(inputs, answer, d)
    changed = [name for name, tensor in watched.items() if not same_bits(_storage(tensor), before[name])]
    return Finding(ok=not changed, message=f"the call wrote into {', '.join(changed)}" if changed else "")


def _storage(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of all bytes behind a tensor, those between its rows included."""
    everything = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return everything.set_(tensor.detach().untyped_storage()).clone()


def apart(context: Context, case: Case) -> Finding:
    """No output lies in an input's memory, in another output's, or in that of the next call."""
    inputs = make_inputs(case, context.device)
    first, second = attend(context, inputs), attend(context, inputs)
    named = {f"input {name}": tensor for name, tensor in inputs.tensors().items()}
    for nth, answer in (("", first), ("second ", second)):
        for name, tensor in answer.parts().items():
            other = next((word for word, held in named.items() if _shared(tensor, held)), None)
            if other is not None:
                return Finding(ok=False, message=f"{nth}{name} shares memory with {other}")
            named[f"the {nth or 'first '}{name}"] = tensor
    return _gradients_apart(case, inputs, first.out, context)


def _gradients_apart(case: Case, inputs: Inputs, out: torch.Tensor, context: Context) -> Finding:
    """Gradients have the shape and dtype of their tensors, and memory of their own."""
    if not needs_backward(case) or not out.requires_grad:
        return Finding(ok=True)
    answer = attend(context, inputs)
    found = gradients(inputs, answer, upstream(case, answer))
    own = {**inputs.tensors(), "bias": inputs.given.get("attn_mask")}
    for name, gradient in found.items():
        like = own[name]
        if like is None or gradient.shape != like.shape or gradient.dtype != like.dtype:
            return Finding(ok=False, message=f"the gradient of {name} is {gradient.dtype} {list(gradient.shape)}")
        if any(_shared(gradient, held) for held in _present(own.values())):
            return Finding(ok=False, message=f"the gradient of {name} shares memory with an input")
    return Finding(ok=True)


def _present(tensors: Iterable[torch.Tensor | None]) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


def _shared(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(a.numel() and b.numel()) and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def strided(context: Context, case: Case) -> Finding:
    """The same numbers in contiguous memory give an equal answer."""
    inputs = make_inputs(case, context.device)
    plain = make_inputs(case.replace(memory="contiguous"), context.device)
    got, want = attend(context, inputs), attend(context, plain)
    size = float(want.out.detach().to(torch.float64).square().mean().sqrt()) if want.out.numel() else 0.0
    return near(context, got, want, inputs, "strides", size)


CHECKS = (
    Check(
        name="unmodified", kind="property", run=unmodified, clauses=("PURITY-1",), applies=lambda case: case.seq_q > 0,
    ),
    Check(
        name="apart", kind="property", run=apart, clauses=("PURITY-2", "PURITY-3"), applies=lambda case: case.seq_q > 0,
    ),
    Check(
        name="strided", kind="property", run=strided, clauses=("STRIDE-1", "STRIDE-2"),
        narrowed=lambda case: ("STRIDE-2",) if case.memory == "odd_unit_strides" else ("STRIDE-1",),
        applies=lambda case: case.memory != "contiguous" and case.values != "large",
    ),
)  # fmt: skip
