"""torch's build of FlashAttention-2 for CUDA: `aten::_flash_attention_forward`, operands in [B, S, H, D].

Its diagonal is bottom-right, it takes windows on it, groups query heads by itself and wants K and V of one width that
is a multiple of 8. It takes no mask tensor. It multiplies hidden scores by the scale after masking, hence the sign in q.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attn_backends.backends.torch_sdpa.conversions import Conversion, conversions_of
from attn_backends.backends.torch_sdpa.launch import Result, launch, launch_backward
from attn_backends.backends.torch_sdpa.problem import Needs, Problem

if TYPE_CHECKING:
    from attn_backends.call import Call, Grads

NEEDS = Needs(
    diagonals=("bottom_right",), window="two_sided", masks=False, width_multiple=8, equal_widths=True, vectors=True
)
_FORWARD = torch.ops.aten._flash_attention_forward
_BACKWARD = torch.ops.aten._flash_attention_backward


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
    q, k, v = (tensor.transpose(1, 2) for tensor in (problem.q, problem.k, problem.v))
    left, right = _window(problem)
    out, lse, *rng, _debug = _FORWARD(
        q, k, v, None, None, q.shape[1], k.shape[1], 0.0, problem.causal, False,
        scale=problem.scale, window_size_left=left, window_size_right=right,
    )  # fmt: skip
    return Result(out=out.transpose(1, 2), lse=lse, rest=tuple(rng))


def _backward(
    problem: Problem, result: Result, d_out: torch.Tensor, call: Call
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v, out, d_out = (t.transpose(1, 2) for t in (problem.q, problem.k, problem.v, result.out, d_out))
    left, right = _window(problem)
    dq, dk, dv = _BACKWARD(
        d_out, q, k, v, out, result.lse, None, None, q.shape[1], k.shape[1], 0.0, problem.causal, *result.rest,
        scale=problem.scale, window_size_left=left, window_size_right=right,
    )  # fmt: skip
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)


def _window(problem: Problem) -> tuple[int, int]:
    """(left, right) as the kernel counts them: -1 = unbounded."""
    return -1 if problem.left is None else problem.left, -1 if problem.right is None else problem.right
