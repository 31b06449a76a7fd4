"""Control: keys in three splits, each attended to by itself, the states merged by their LSEs; the sink is a state too.

lse = ln(exp(a) + exp(b)),   out = exp(a - lse) out_a + exp(b - lse) out_b
"""

from __future__ import annotations

from functools import reduce

import torch

from attn_backends.call import Call, Grads
from attn_backends.conformance.controls.declaring import dense, manifest, paged
from attn_backends.conformance.controls.pieces import Piece, PieceGrads, backward_pieces, run_pieces
from attn_backends.conformance.controls.steps import dropped, far_off, finite_shift, logits, spread, textbook_gradients

MANIFEST = manifest("split_states", dense(), paged())
SPLITS = 3

State = tuple[torch.Tensor, torch.Tensor]


def run(call: Call) -> None:
    """See `Call`."""
    run_pieces(call, _attend)


def backward(call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
    """See `Call`."""
    return backward_pieces(call, _differentiate, d_out, d_lse)


def _attend(p: Piece) -> State:
    far = far_off(logits(p, p.q @ spread(p, p.k).mT), p.sinks)
    out, lse = _merged(p, far)
    return out, lse + far


def _merged(p: Piece, far: torch.Tensor) -> State:
    """The state of all keys, its LSE short of what was taken off every logit [Hq, Sq]."""
    step = -(-max(p.k.shape[1], 1) // SPLITS)
    states = [_part(p, slice(start, start + step), far) for start in range(0, p.k.shape[1], step)]
    nothing = p.q.new_zeros((*p.q.shape[:2], p.v.shape[-1]))
    return reduce(_merge, states, (nothing, p.sinks[:, None] - far))


def _part(p: Piece, keys: slice, far: torch.Tensor) -> State:
    scores = logits(p, p.q @ spread(p, p.k[:, keys]).mT, keys=keys) - far[..., None]
    lse = scores.logsumexp(dim=-1)
    weights = torch.exp(scores - finite_shift(lse)[..., None])
    return dropped(p, weights, keys=keys) @ spread(p, p.v[:, keys]), lse


def _merge(a: State, b: State) -> State:
    lse = torch.logaddexp(a[1], b[1])
    shift = finite_shift(lse)
    return torch.exp(a[1] - shift)[..., None] * a[0] + torch.exp(b[1] - shift)[..., None] * b[0], lse


def _differentiate(p: Piece, d_out: torch.Tensor, d_lse: torch.Tensor) -> PieceGrads:
    scores = logits(p, p.q @ spread(p, p.k).mT)
    far = far_off(scores, p.sinks)
    _out, lse = _merged(p, far)
    weights = torch.exp(scores - far[..., None] - finite_shift(lse)[..., None])
    return textbook_gradients(p, weights, lse + far, (d_out, d_lse))
