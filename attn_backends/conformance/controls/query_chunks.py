"""Control: queries in chunks, each against all keys; the backward recomputes the weights of a chunk and adds up dK, dV."""

from __future__ import annotations

import torch

from attn_backends.call import Call, Grads
from attn_backends.conformance.controls.declaring import dense, manifest
from attn_backends.conformance.controls.pieces import MINUS_INF, Piece, PieceGrads, backward_pieces, run_pieces
from attn_backends.conformance.controls.steps import d_product, dropped, finite_shift, gathered, logits, spread

MANIFEST = manifest("query_chunks", dense())
CHUNK = 8


def run(call: Call) -> None:
    """See `Call`."""
    run_pieces(call, _attend)


def backward(call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
    """See `Call`."""
    return backward_pieces(call, _differentiate, d_out, d_lse)


def _chunks(p: Piece) -> list[slice]:
    return [slice(start, start + CHUNK) for start in range(0, p.q.shape[1], CHUNK)]


def _weights(p: Piece, rows: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(products, weights, lse) of a chunk; the softmax is the plain one after a shift by its maximum."""
    product = p.q[:, rows] @ spread(p, p.k).mT
    sink = p.sinks[:, None, None].expand(-1, product.shape[1], 1)
    full = torch.cat([logits(p, product, rows=rows), sink], dim=-1)
    shift = finite_shift(full.amax(dim=-1, keepdim=True))
    powers = torch.exp(full - shift)
    total = powers.sum(dim=-1, keepdim=True)
    lse = torch.where(total > 0, total.log() + shift, MINUS_INF).squeeze(-1)
    return product, powers[..., :-1] / torch.where(total > 0, total, 1.0), lse


def _attend(p: Piece) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = p.q.new_zeros((*p.q.shape[:2], p.v.shape[-1])), p.q.new_zeros(p.q.shape[:2])
    for rows in _chunks(p):
        _product, weights, lse[:, rows] = _weights(p, rows)
        out[:, rows] = dropped(p, weights, rows=rows) @ spread(p, p.v)
    return out, lse


def _differentiate(p: Piece, d_out: torch.Tensor, d_lse: torch.Tensor) -> PieceGrads:
    grads = PieceGrads(
        q=torch.zeros_like(p.q), k=torch.zeros_like(p.k), v=torch.zeros_like(p.v),
        scores=p.q.new_zeros(p.visible.shape), sinks=torch.zeros_like(p.sinks),
    )  # fmt: skip
    k, v = spread(p, p.k), spread(p, p.v)
    for rows in _chunks(p):
        product, weights, lse = _weights(p, rows)
        kept = dropped(p, weights, rows=rows)
        row = d_lse[:, rows] - (kept @ v * d_out[:, rows]).sum(dim=-1)
        d_scores = weights * (dropped(p, d_out[:, rows] @ v.mT, rows=rows) + row[..., None])
        grads.scores[:, rows] = torch.where(p.visible[:, rows], d_scores, 0.0)
        flow = d_product(p, product, grads.scores[:, rows], rows)
        grads.q[:, rows] = flow @ k
        grads.k.add_(gathered(p, flow.mT @ p.q[:, rows]))
        grads.v.add_(gathered(p, kept.mT @ d_out[:, rows]))
        grads.sinks.add_((torch.exp(p.sinks[:, None] - finite_shift(lse)) * row).sum(dim=1))
    return grads
