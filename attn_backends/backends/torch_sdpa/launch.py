"""The frame around one fused kernel: prepare, launch, deliver; and the same on the way back.

An adapter gives its `Needs` and two functions on a `Problem`; everything that has to do with the caller is here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from attn_backends.backends.torch_sdpa import deliver
from attn_backends.backends.torch_sdpa.problem import Needs, Problem, prepare

if TYPE_CHECKING:
    from attn_backends.call import Call, Grads


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a kernel returned: out [B, Hq, rows, Dv], lse [B, Hq, >= rows] natural log, and what its backward asks for."""

    out: torch.Tensor
    lse: torch.Tensor | None
    rest: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """`Call.saved` between forward and backward; `result` is None where no row saw a key."""

    problem: Problem
    result: Result | None


Forward = Callable[[Problem, "Call"], Result]
Backward = Callable[[Problem, Result, torch.Tensor, "Call"], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def launch(call: Call, needs: Needs, forward: Forward) -> None:
    """Run the kernel and write out and lse."""
    problem = prepare(call, needs)
    result = None if problem.band.blank else forward(problem, call)
    if result is None:
        deliver.deliver_blank(call)
    else:
        deliver.deliver(call, problem, result.out, result.lse)
    if call.needs_backward:
        call.saved = Kept(problem=problem, result=result)


def launch_backward(call: Call, needs: Needs, backward: Backward, d_out: torch.Tensor) -> Grads:
    """Run the kernel's backward on what `launch` kept."""
    kept: Kept = call.saved
    if kept.result is None:
        return deliver.blank_grads(call)
    d_inside = deliver.output_gradient(call, kept.problem, d_out, needs)
    return deliver.deliver_grads(call, kept.problem, *backward(kept.problem, kept.result, d_inside, call))
