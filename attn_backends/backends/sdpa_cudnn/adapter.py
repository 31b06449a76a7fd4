"""torch's door to cuDNN's fused attention: `aten::_scaled_dot_product_cudnn_attention`.

Its diagonal is top-left and it groups query heads by itself. Masks, which it would take, are not used: cuDNN's backward
with a mask has wrong-result reports, and the other kernels serve those calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attn_backends.backends.torch_sdpa.conversions import Conversion, conversions_of
from attn_backends.backends.torch_sdpa.launch import Result, launch, launch_backward
from attn_backends.backends.torch_sdpa.problem import Needs, Problem

if TYPE_CHECKING:
    from attn_backends.call import Call, Grads

NEEDS = Needs(diagonals=("top_left",), masks=False, width_multiple=8, equal_widths=True, vectors=True)
_FORWARD = torch.ops.aten._scaled_dot_product_cudnn_attention
_BACKWARD = torch.ops.aten._scaled_dot_product_cudnn_attention_backward


def run(call: Call) -> None:
    """Write `call.out` and, where asked, `call.lse`."""
    launch(call, NEEDS, _forward)


def backward(call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
    """Gradients of q, k, v; the manifest declares no LSE together with them, so `d_lse` is None."""
    return launch_backward(call, NEEDS, _backward, d_out)


def conversions(call: Call) -> list[Conversion]:
    """What `run` is going to convert, with its bytes."""
    return conversions_of(call, NEEDS)


def _forward(problem: Problem, call: Call) -> Result:
    wants_lse = call.needs_backward or call.lse is not None
    out, lse, cum_q, cum_k, max_q, max_k, seed, offset, _debug = _FORWARD(
        problem.q, problem.k, problem.v, None, wants_lse, 0.0, problem.causal, False, scale=problem.scale
    )
    rest = (lse, seed, offset, cum_q, cum_k, max_q, max_k)
    return Result(out=out, lse=_flat(lse) if wants_lse else None, rest=rest)


def _backward(
    problem: Problem, result: Result, d_out: torch.Tensor, call: Call
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    lse, seed, offset, cum_q, cum_k, max_q, max_k = result.rest
    q, k, v = problem.q, problem.k, problem.v
    if d_out.stride() != result.out.stride():  # cuDNN reads dO with the strides of out: another one gave a wrong dq
        d_out = torch.empty_like(result.out).copy_(d_out)
    grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _BACKWARD(
        d_out, q, k, v, result.out, lse, seed, offset, None, cum_q, cum_k, max_q, max_k, 0.0, problem.causal,
        scale=problem.scale,
    )  # fmt: skip
    return grads


def _flat(lse: torch.Tensor) -> torch.Tensor:
    """[B, H, S] of cuDNN's [B, H, S, 1]."""
    return lse.squeeze(-1) if lse.dim() == 4 else lse
