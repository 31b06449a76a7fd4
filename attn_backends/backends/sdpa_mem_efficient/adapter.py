"""torch's memory-efficient attention for CUDA: `aten::_efficient_attention_forward`, operands in [B, S, H, D].

It knows both diagonals, takes windows under them, an additive mask in q's dtype, and K and V of different widths. It
has one KV head per query head, and pads its LSE to multiples of 32 rows. Its backward splits the keys over blocks that
add up in any order, unless told to use one split.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attn_backends.backends.torch_sdpa.conversions import Conversion, conversions_of
from attn_backends.backends.torch_sdpa.launch import Result, launch, launch_backward
from attn_backends.backends.torch_sdpa.masking import padded_rows
from attn_backends.backends.torch_sdpa.problem import Needs, Problem

if TYPE_CHECKING:
    from attn_backends.call import Call, Grads

NEEDS = Needs(diagonals=("top_left", "bottom_right"), window="left", grouped=False, width_multiple=8, vectors=True)
_FORWARD = torch.ops.aten._efficient_attention_forward
_BACKWARD = torch.ops.aten._efficient_attention_backward
_MASK_TYPE = {"none": 0, "mask": 0, "top_left": 1, "bottom_right": 2}


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
    bias = _bias(problem)
    out, lse, seed, offset, _max_q, _max_k = _FORWARD(
        q, k, v, bias, None, None, None, None, 0.0, _MASK_TYPE[problem.diagonal],
        call.needs_backward or call.lse is not None, scale=problem.scale, window_size=_window(problem),
    )  # fmt: skip
    return Result(out=out.transpose(1, 2), lse=lse, rest=(bias, seed, offset))


def _backward(
    problem: Problem, result: Result, d_out: torch.Tensor, call: Call
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v, out, d_out = (t.transpose(1, 2) for t in (problem.q, problem.k, problem.v, result.out, d_out))
    bias, seed, offset = result.rest
    dq, dk, dv, _d_bias = _BACKWARD(
        d_out, q, k, v, bias, out, None, None, q.shape[1], k.shape[1], result.lse, 0.0, seed, offset,
        _MASK_TYPE[problem.diagonal], False,
        scale=problem.scale, num_splits_key=1 if call.deterministic else None, window_size=_window(problem),
    )  # fmt: skip
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)


def _bias(problem: Problem) -> torch.Tensor | None:
    if problem.mask is None:
        return None
    batch, heads, rows, _width = problem.q.shape
    return padded_rows(problem.mask, batch, heads, rows, problem.k.shape[2])


def _window(problem: Problem) -> int | None:
    """The window as the kernel counts it: oneself included."""
    return None if problem.left is None or problem.diagonal == "mask" else problem.left + 1
