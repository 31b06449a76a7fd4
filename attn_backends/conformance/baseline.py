"""The baseline of the tolerance: what rounding alone costs a naive implementation in the dtype of the call.

Every step of the textbook is one operation whose result is rounded to that dtype; products and sums inside a step are
float32 (float64 for float64), with TF32 and bfloat16 shortcuts off:

    s = (scale q) k^T;  s = cap tanh(s / cap);  s = s + bias;  s = s - slope |distance|;  p = softmax(s);  out = drop(p) v

It says how large an error is ordinary; what is right is the oracle's to say. It reads the call as the oracle does
(`Problem`), so that both answer one question, and shares no arithmetic with it or with any backend. With a quantiser it
takes the same steps on quantised numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from attn_backends.conformance.naive import Forward, Rounding, backward, forward
from attn_backends.conformance.problem import Problem, read_problem
from attn_backends.conformance.quantiser import Quantiser
from attn_backends.conformance.storing import logical_lse, stored_gradients, stored_lse, stored_out
from attn_backends.host.arguments import Arguments, arguments

_DENSE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rough:
    """out in the call's output dtype, lse float32 (float64 for float64); shaped as `attention` returns them."""

    out: torch.Tensor
    lse: torch.Tensor


def judged_dtype(q: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.dtype:
    """The dtype whose rounding a call is judged by: q's, bfloat16 for a quantised q, the output's if that is coarser."""
    own = q.dtype if q.dtype in _DENSE else torch.bfloat16
    if out_dtype is None or torch.finfo(out_dtype).eps <= torch.finfo(own).eps:
        return own
    return out_dtype


def baseline(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, quantiser: Quantiser | None = None, **given: Any
) -> Rough:
    """The naive result of `attention(q, k, v, **given)`, on the device of q; arguments as for the oracle."""
    a = arguments(given)
    rounded = Rounding(dtype=judged_dtype(q))
    with _plain_arithmetic(q.device):
        problem, naive = _solved((q, k, v), a, rounded, quantiser)
        out_dtype = rounded.dtype if a.out_dtype is None else _as_dtype(a.out_dtype)
        return Rough(out=stored_out(naive.out, problem, q, out_dtype), lse=stored_lse(naive.lse, problem, q))


def baseline_gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_out: torch.Tensor,
    d_lse: torch.Tensor | None = None,
    *,
    quantiser: Quantiser | None = None,
    **given: Any,
) -> dict[str, torch.Tensor]:
    """Naive gradients in the dtypes of their tensors, under the names of `oracle_gradients`; no autograd inside."""
    a = arguments(given)
    rounded = Rounding(dtype=judged_dtype(q))
    with _plain_arithmetic(q.device):
        problem, naive = _solved((q, k, v), a, rounded, quantiser)
        grads = backward(problem, naive, problem.queries.take(d_out), logical_lse(d_lse, problem), rounded)
        return stored_gradients(grads, problem, (q, k, v), a)


def _solved(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    a: Arguments,
    rounded: Rounding,
    quantiser: Quantiser | None,
) -> tuple[Problem, Forward]:
    """The call as a problem, and its naive forward."""
    problem = read_problem(*tensors, a)
    if quantiser is None:
        return problem, forward(problem, rounded)
    problem = quantiser.problem(problem, tensors)
    return problem, forward(problem, rounded, quantiser.weights)


def _as_dtype(given: torch.dtype | str) -> torch.dtype:
    found: torch.dtype = given if isinstance(given, torch.dtype) else getattr(torch, given.removeprefix("torch."))
    return found


@contextmanager
def _plain_arithmetic(device: torch.device) -> Iterator[None]:
    """No graph, no autocast, and float32 products are float32 products. Restores the process's switches."""
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast(device.type, enabled=False))
        matmuls: list[Any] = [torch.backends.cuda.matmul, torch.backends.mkldnn]
        for owner in (matmuls[0], getattr(matmuls[1], "matmul", None)):
            name = "fp32_precision" if hasattr(owner, "fp32_precision") else "allow_tf32"
            if hasattr(owner, name):
                stack.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, "ieee" if name == "fp32_precision" else False)
        yield
