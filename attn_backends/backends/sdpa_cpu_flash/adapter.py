"""torch's flash attention for CPUs: `aten::_scaled_dot_product_flash_attention_for_cpu`.

Seen in torch 2.13: it takes no lengths of 0 (it divides by them), reads a last dim of any stride as if it were 1, and
multiplies hidden scores by the scale after masking; `torch_sdpa` keeps all three from it. Its diagonal is top-left, it
groups query heads by itself, and its float mask may be in q's dtype or float32. Its backward adds up the query heads
of a group in the dtype of K, eight roundings of bfloat16 for eight heads, so K and V of two bytes are repeated for it.
It multiplies dO.v by a weight that is 0 where a key is hidden; what overflows there would be NaN, so dO and V are scaled
down by a power of two first.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import torch

from attn_backends.backends.torch_sdpa.conversions import Conversion, conversions_of
from attn_backends.backends.torch_sdpa.launch import Result, launch, launch_backward
from attn_backends.backends.torch_sdpa.problem import Needs, Problem

if TYPE_CHECKING:
    from attn_backends.call import Call, Grads

NEEDS = Needs(diagonals=("top_left",), equal_widths=True)
UNGROUPED = dataclasses.replace(NEEDS, grouped=False)
_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def run(call: Call) -> None:
    """Write `call.out` and, where asked, `call.lse`."""
    launch(call, needs_of(call), _forward)


def backward(call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
    """Gradients of q, k, v; the manifest declares no LSE together with them, so `d_lse` is None."""
    return launch_backward(call, needs_of(call), _backward, d_out)


def conversions(call: Call) -> list[Conversion]:
    """What `run` is going to convert, with its bytes."""
    return conversions_of(call, needs_of(call))


def needs_of(call: Call) -> Needs:
    """What the kernel can take as it stands in this call."""
    return UNGROUPED if call.needs_backward and call.k.element_size() == 2 else NEEDS


def _forward(problem: Problem, call: Call) -> Result:
    mask = _expanded(problem)
    out, lse = _FORWARD(problem.q, problem.k, problem.v, 0.0, problem.causal, attn_mask=mask, scale=problem.scale)
    return Result(out=out, lse=lse, rest=(mask,))


def _backward(
    problem: Problem, result: Result, d_out: torch.Tensor, call: Call
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    (mask,) = result.rest
    half = (_excess(d_out, problem.v) + 1) // 2 if problem.causal or mask is not None else 0
    d_out, v, out = (_scaled(tensor, -half) for tensor in (d_out, problem.v, result.out))
    dq, dk, dv = _BACKWARD(
        d_out, problem.q, problem.k, v, out, result.lse, 0.0, problem.causal, attn_mask=mask, scale=problem.scale
    )
    return _scaled(_scaled(dq, half), half), _scaled(_scaled(dk, half), half), _scaled(dv, half)


def _scaled(tensor: torch.Tensor, exponent: int) -> torch.Tensor:
    """Times a power of two."""
    return tensor * 2.0**exponent if exponent else tensor


def _excess(d_out: torch.Tensor, v: torch.Tensor) -> int:
    """By how many powers of two dO.v may leave the range that the kernel computes in; 0 as a rule."""
    if d_out.numel() == 0 or v.numel() == 0:
        return 0
    sizes = [float(tensor.abs().amax()) for tensor in (d_out, v)]
    if not all(map(math.isfinite, sizes)):
        return 0
    largest = torch.finfo(torch.promote_types(v.dtype, torch.float32)).max
    exponent = sum(math.frexp(size)[1] for size in sizes) + v.shape[-1].bit_length()
    return max(0, exponent - math.frexp(largest)[1] + 1)


def _expanded(problem: Problem) -> torch.Tensor | None:
    if problem.mask is None:
        return None
    batch, heads, rows, _width = problem.q.shape
    return problem.mask.expand(batch, heads, rows, problem.k.shape[2])
