"""Control: tiles of keys from last to first, twice: once for the maximum, once for the sums at that maximum."""

from __future__ import annotations

import torch

from attn_backends.call import Call, Grads
from attn_backends.conformance.controls.declaring import dense, manifest, quantised
from attn_backends.conformance.controls.pieces import MINUS_INF, Piece, PieceGrads, backward_pieces, run_pieces
from attn_backends.conformance.controls.steps import dropped, finite_shift, logits, spread, textbook_gradients

MANIFEST = manifest("reversed_two_pass", dense(), quantised())
TILE = 24


def run(call: Call) -> None:
    """See `Call`."""
    run_pieces(call, _attend)


def backward(call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
    """See `Call`."""
    return backward_pieces(call, _differentiate, d_out, d_lse)


def _tiles(p: Piece) -> list[slice]:
    return [slice(start, start + TILE) for start in reversed(range(0, p.k.shape[1], TILE))]


def _attend(p: Piece) -> tuple[torch.Tensor, torch.Tensor]:
    largest = p.sinks[:, None].expand(p.q.shape[:2])
    for keys in _tiles(p):
        scores = logits(p, p.q @ spread(p, p.k[:, keys]).mT, keys=keys)
        largest = torch.maximum(largest, scores.amax(dim=-1))
    shift = finite_shift(largest)
    total = torch.exp(p.sinks[:, None] - shift)
    out = p.q.new_zeros((*p.q.shape[:2], p.v.shape[-1]))
    for keys in _tiles(p):
        powers = torch.exp(logits(p, p.q @ spread(p, p.k[:, keys]).mT, keys=keys) - shift[..., None])
        total = total + powers.sum(dim=-1)
        out += dropped(p, powers, keys=keys) @ spread(p, p.v[:, keys])
    lse = torch.where(total > 0.0, torch.log(total) + shift, MINUS_INF)
    return out / torch.where(total > 0.0, total, 1.0)[..., None], lse


def _differentiate(p: Piece, d_out: torch.Tensor, d_lse: torch.Tensor) -> PieceGrads:
    _out, lse = _attend(p)
    weights = torch.exp(logits(p, p.q @ spread(p, p.k).mT) - finite_shift(lse)[..., None])
    return textbook_gradients(p, weights, lse, (d_out, d_lse))
