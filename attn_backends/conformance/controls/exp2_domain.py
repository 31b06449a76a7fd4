"""Control: base 2 inside, as kernels have it: log2(e) goes into the logits, exp2 and log2 do the rest, ln comes out."""

from __future__ import annotations

import torch

from attn_backends.call import Call, Grads
from attn_backends.conformance.controls.declaring import dense, manifest, paged
from attn_backends.conformance.controls.pieces import MINUS_INF, Piece, PieceGrads, backward_pieces, run_pieces
from attn_backends.conformance.controls.steps import dropped, far_off, finite_shift, logits, spread, textbook_gradients

MANIFEST = manifest("exp2_domain", dense(), paged())
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


def run(call: Call) -> None:
    """See `Call`."""
    run_pieces(call, _attend)


def backward(call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
    """See `Call`."""
    return backward_pieces(call, _differentiate, d_out, d_lse)


def _powers(p: Piece) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(2^(s - m) [Hq, Sq, Sk], their sum with the sink's, m, what was taken off before log2(e) came in [Hq, Sq])."""
    scores = logits(p, p.q @ spread(p, p.k).mT)
    far = far_off(scores, p.sinks)
    scores = (scores - far[..., None]) * LOG2_E
    sink = largest = (p.sinks[:, None] - far) * LOG2_E
    if scores.shape[-1]:
        largest = torch.maximum(largest, scores.amax(dim=-1))
    shift = finite_shift(largest)
    powers = torch.exp2(scores - shift[..., None])
    return powers, powers.sum(dim=-1) + torch.exp2(sink - shift), shift, far


def _attend(p: Piece) -> tuple[torch.Tensor, torch.Tensor]:
    powers, total, shift, far = _powers(p)
    lse = torch.where(total == 0.0, MINUS_INF, (torch.log2(total) + shift) * LN_2 + far)
    return dropped(p, powers) @ spread(p, p.v) / torch.where(total == 0.0, 1.0, total)[..., None], lse


def _differentiate(p: Piece, d_out: torch.Tensor, d_lse: torch.Tensor) -> PieceGrads:
    powers, total, _shift, _far = _powers(p)
    _out, lse = _attend(p)
    return textbook_gradients(p, powers / torch.where(total == 0.0, 1.0, total)[..., None], lse, (d_out, d_lse))
