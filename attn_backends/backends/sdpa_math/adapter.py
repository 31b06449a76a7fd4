"""torch's plain attention: matmul and softmax, scores and weights in memory.

Not `aten::_scaled_dot_product_attention_math`: that adds its mask, so an overflow of a hidden score is NaN in a row that
does not see it; and it returns no LSE. Gradients come from autograd over a second run of the same code: exact through
LSE and a float mask too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attn_backends.backends.sdpa_math.gradients import bias_gradient, gradients
from attn_backends.backends.sdpa_math.scores import attend
from attn_backends.backends.torch_sdpa import deliver
from attn_backends.backends.torch_sdpa.conversions import Conversion, conversions_of
from attn_backends.backends.torch_sdpa.problem import Needs, Problem, prepare

if TYPE_CHECKING:
    from attn_backends.call import Call, Grads

NEEDS = Needs(diagonals=("top_left",), signed_scale=True, adds_mask=False)


def run(call: Call) -> None:
    """Write `call.out` and, where asked, `call.lse`."""
    problem = prepare(call, NEEDS)
    if call.needs_backward:
        call.saved = problem
    if problem.band.blank:
        deliver.deliver_blank(call)
        return
    results = attend(problem, problem.q, problem.k, problem.v, problem.mask, with_lse=call.lse is not None)
    deliver.deliver(call, problem, *results)


def backward(call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
    """Gradients of q, k, v and, where asked, the float mask; through out and LSE both."""
    problem: Problem = call.saved
    if problem.band.blank:
        return _blank(call)
    band = problem.band
    d_inside = deliver.output_gradient(call, problem, d_out, NEEDS)
    d_lse_inside = None if d_lse is None else d_lse[:, :, band.first_row : band.end_row]
    q, k, v, mask = gradients(problem, d_inside, d_lse_inside, call.grad_bias)
    grads = deliver.deliver_grads(call, problem, q, k, v)
    if call.grad_bias:
        grads.bias = bias_gradient(call, problem, mask)
    return grads


def conversions(call: Call) -> list[Conversion]:
    """What `run` is going to convert, with its bytes."""
    return conversions_of(call, NEEDS)


def _blank(call: Call) -> Grads:
    grads = deliver.blank_grads(call)
    if call.grad_bias and call.attn_mask is not None:
        grads.bias = torch.zeros_like(call.attn_mask)
    return grads
