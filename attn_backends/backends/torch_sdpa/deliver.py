"""Results of a kernel back in the caller's shapes: out and LSE into the host's memory, gradients in the inputs' layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attn_backends.backends.torch_sdpa import operands
from attn_backends.backends.torch_sdpa.layout import heads_first
from attn_backends.backends.torch_sdpa.masking import without_empty_rows
from attn_backends.call import Grads

if TYPE_CHECKING:
    from attn_backends.backends.torch_sdpa.problem import Needs, Problem
    from attn_backends.call import Call


def deliver(call: Call, problem: Problem, out: torch.Tensor, lse: torch.Tensor | None) -> None:
    """Write out [B, Hq, rows, >= Dv] of any float dtype and lse [B, Hq, >= rows]; rows that see nothing get 0 and -inf.

    out is the kernel's own memory: where it is all of the answer it becomes `call.out`, and nothing is copied.
    """
    width = call.out.shape[-1]
    out = out if out.shape[-1] == width else out[..., :width]
    call.hand_over(heads_first(out, call.layout))
    _write(heads_first(call.out, call.layout), problem, out, 0.0)
    if call.lse is not None and lse is not None:
        _write(call.lse.unsqueeze(-1), problem, lse[:, :, : problem.band.rows].unsqueeze(-1), -torch.inf)


def deliver_blank(call: Call) -> None:
    """The answer where no row sees any key."""
    call.out.zero_()
    if call.lse is not None:
        call.lse.fill_(-torch.inf)


def _write(target: torch.Tensor, problem: Problem, source: torch.Tensor, nothing: float) -> None:
    first, end = problem.band.first_row, problem.band.end_row
    if first:
        target[:, :, :first] = nothing
    if end < target.shape[2]:
        target[:, :, end:] = nothing
    inside = target if end - first == target.shape[2] else target[:, :, first:end]
    if not _is_there(source, inside):  # else the kernel wrote there by itself
        inside.copy_(source)
    if problem.visible is not None and problem.visible.empty is not None:
        inside.masked_fill_(problem.visible.empty, nothing)


def _is_there(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether both are the same memory. A tensor that wraps others has none, and its address is 0."""
    place = source.data_ptr()
    return place != 0 and place == target.data_ptr()


def output_gradient(call: Call, problem: Problem, d_out: torch.Tensor, needs: Needs) -> torch.Tensor:
    """dO as the kernel wants it: in q's dtype, [B, Hq, rows, padded Dv], zero in rows that see nothing."""
    placed = needs.place(d_out.to(problem.q.dtype))
    inside = heads_first(placed, call.layout)[:, :, problem.band.first_row : problem.band.end_row]
    inside = operands.pad_width(without_empty_rows(inside, problem.visible), problem.v.shape[-1])
    return operands.vectorised(inside) if needs.vectors else inside


def deliver_grads(call: Call, problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Grads:
    """Undo sign, padding, repetition and slicing; what no row sees and what sees nothing gets 0."""
    band = problem.band
    return Grads(
        q=_spread(operands.signed(q, problem.sign), call.q, call.layout, band.first_row, band.end_row),
        k=_spread(operands.sum_groups(k, problem.ratio), call.k, call.layout, band.first_key, band.end_key),
        v=_spread(operands.sum_groups(v, problem.ratio), call.v, call.layout, band.first_key, band.end_key),
    )


def blank_grads(call: Call) -> Grads:
    """Gradients where no row sees any key."""
    return Grads(q=torch.zeros_like(call.q), k=torch.zeros_like(call.k), v=torch.zeros_like(call.v))


def _spread(grad: torch.Tensor, like: torch.Tensor, layout: str, first: int, end: int) -> torch.Tensor:
    grad = grad[..., : like.shape[-1]]
    whole = heads_first(like, layout).shape
    if grad.shape == whole:
        return heads_first(grad, layout)
    full = grad.new_zeros(whole)
    full[:, :, first:end] = grad
    return heads_first(full, layout)
