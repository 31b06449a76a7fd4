"""Control: float64 throughout, whatever came in, and gradients by torch's own autograd."""

from __future__ import annotations

import dataclasses

import torch

from attn_backends.call import Call, Grads
from attn_backends.conformance.controls.declaring import dense, manifest, quantised_q
from attn_backends.conformance.controls.pieces import MINUS_INF, Piece, PieceGrads, backward_pieces, run_pieces
from attn_backends.conformance.controls.steps import dropped, far_off, logits, spread

MANIFEST = manifest("double_autograd", dense(), quantised_q())


def run(call: Call) -> None:
    """See `Call`."""
    run_pieces(call, _attend, torch.float64)


def backward(call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
    """See `Call`."""
    return backward_pieces(call, _differentiate, d_out, d_lse, torch.float64)


def _attend(p: Piece) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that see nothing get a softmax over zeros, and are then put right: no gradient meets an infinity."""
    some = p.visible.any(dim=-1)
    scores = logits(p, p.q @ spread(p, p.k).mT)
    far = far_off(scores.detach(), p.sinks.detach())
    scores = scores - far[..., None]
    own = torch.where(some[..., None], scores, 0.0).logsumexp(dim=-1)
    has_sink = (p.sinks != MINUS_INF)[:, None]
    sink = torch.where(has_sink, p.sinks[:, None] - far, 0.0)
    lse = torch.where(has_sink, torch.logaddexp(own, sink), own)
    weights = torch.where(p.visible, torch.exp(scores - lse[..., None]), 0.0)
    out = dropped(p, weights) @ spread(p, p.v)
    return out, torch.where(some, lse, torch.where(has_sink, sink, MINUS_INF)) + far


def _differentiate(p: Piece, d_out: torch.Tensor, d_lse: torch.Tensor) -> PieceGrads:
    nothing = torch.zeros(p.visible.shape, dtype=p.q.dtype)
    added = nothing if p.added is None else p.added + nothing
    leaves = [x.detach().clone().requires_grad_() for x in (p.q, p.k, p.v, added, p.sinks)]
    q, k, v, added, sinks = leaves
    with torch.enable_grad():
        out, lse = _attend(dataclasses.replace(p, q=q, k=k, v=v, added=added, sinks=sinks))
        reach = (out * d_out).sum() + torch.where(torch.isneginf(lse), 0.0, lse * d_lse).sum()
        found = torch.autograd.grad(reach, leaves, materialize_grads=True)
    return PieceGrads(q=found[0], k=found[1], v=found[2], scores=found[3], sinks=found[4])
