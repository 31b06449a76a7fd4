"""The backward of `sdpa_math`: autograd over a second run of the forward's code, on leaves cut off from the caller's graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attn_backends.backends.sdpa_math.scores import attend
from attn_backends.backends.torch_sdpa.problem import Problem

if TYPE_CHECKING:
    from attn_backends.call import Call

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]


def gradients(problem: Problem, d_out: torch.Tensor, d_lse: torch.Tensor | None, with_mask: bool) -> Gradients:
    """dq, dk, dv of the problem's operands, and the gradient of its additive mask where asked."""
    with torch.enable_grad():
        q, k, v = (tensor.detach().requires_grad_() for tensor in (problem.q, problem.k, problem.v))
        mask = None if problem.mask is None else problem.mask.detach().requires_grad_(with_mask)
        out, lse = attend(problem, q, k, v, mask, with_lse=d_lse is not None)
        results, sources = [out], [d_out.to(out.dtype)]
        if d_lse is not None and lse is not None:
            results.append(lse)
            sources.append(_inside(problem, d_lse).to(lse.dtype))
    leaves = [q, k, v] if mask is None or not with_mask else [q, k, v, mask]
    found = torch.autograd.grad(results, leaves, sources)
    return found[0], found[1], found[2], found[3] if len(found) > 3 else None


def bias_gradient(call: Call, problem: Problem, d_mask: torch.Tensor | None) -> torch.Tensor | None:
    """The additive mask's gradient in the shape of `attn_mask`: rows and keys cut off by the band get 0."""
    bias = call.attn_mask
    if bias is None or d_mask is None:
        return None
    band = problem.band
    frame = (1,) * (4 - bias.dim()) + tuple(bias.shape)
    inside = [*frame[:2], band.rows if frame[2] != 1 else 1, band.keys if frame[3] != 1 else 1]
    part = d_mask.sum_to_size(inside)
    full = torch.zeros(frame, dtype=bias.dtype, device=bias.device)
    rows = slice(band.first_row, band.end_row) if frame[2] != 1 else slice(None)
    keys = slice(band.first_key, band.end_key) if frame[3] != 1 else slice(None)
    full[:, :, rows, keys] = part
    return full.view(bias.shape)


def _inside(problem: Problem, d_lse: torch.Tensor) -> torch.Tensor:
    """d_lse, zero where the LSE is the constant -inf."""
    if problem.visible is None or problem.visible.empty is None:
        return d_lse
    return d_lse.masked_fill(problem.visible.empty.squeeze(-1), 0.0)
