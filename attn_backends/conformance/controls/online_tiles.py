"""Control: the online softmax (Milakov and Gimelshein, arXiv:1805.02867) over tiles of keys, first to last.

    m' = max(m, max s),  l' = exp(m - m') l + sum exp(s - m'),  o' = exp(m - m') o + exp(s - m') v

A tile that hides everything leaves the state as it is. The sink joins as the first state: m = sink, l = 1, o = 0.
"""

from __future__ import annotations

import torch

from attn_backends.call import Call, Grads
from attn_backends.conformance.controls.declaring import dense, manifest, paged, quantised, quantised_q
from attn_backends.conformance.controls.pieces import MINUS_INF, Piece, PieceGrads, backward_pieces, run_pieces
from attn_backends.conformance.controls.steps import (
    dropped,
    finite_shift,
    gathered,
    logits,
    spread,
)

MANIFEST = manifest("online_tiles", dense(compile=[False, True]), quantised(), quantised_q(), paged())
TILE = 16


def run(call: Call) -> None:
    """See `Call`."""
    run_pieces(call, _attend)


def backward(call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
    """See `Call`."""
    return backward_pieces(call, _differentiate, d_out, d_lse)


def _attend(p: Piece) -> tuple[torch.Tensor, torch.Tensor]:
    largest = p.sinks[:, None].expand(p.q.shape[:2])
    total = torch.where(largest == MINUS_INF, 0.0, torch.ones_like(largest))
    out = p.q.new_zeros((*p.q.shape[:2], p.v.shape[-1]))
    for start in range(0, p.k.shape[1], TILE):
        keys = slice(start, start + TILE)
        scores = logits(p, p.q @ spread(p, p.k[:, keys]).mT, keys=keys)
        now = torch.maximum(largest, scores.amax(dim=-1))
        shift = finite_shift(now)
        powers, faded = torch.exp(scores - shift[..., None]), torch.exp(largest - shift)
        total = total * faded + powers.sum(dim=-1)
        out = out * faded[..., None] + dropped(p, powers, keys=keys) @ spread(p, p.v[:, keys])
        largest = now
    lse = torch.where(total == 0.0, MINUS_INF, finite_shift(largest) + torch.log(total))
    return out / torch.where(total == 0.0, 1.0, total)[..., None], lse


def _differentiate(p: Piece, d_out: torch.Tensor, d_lse: torch.Tensor) -> PieceGrads:
    """By the LSE of the forward; the products of K and V tile by tile."""
    out, lse = _attend(p)
    row = d_lse - (out * d_out).sum(dim=-1)
    starts = range(0, max(p.k.shape[1], 1), TILE)
    tiles = [_tile_gradients(p, slice(start, start + TILE), lse, (d_out, row)) for start in starts]
    weight = torch.exp(p.sinks[:, None] - finite_shift(lse))
    return PieceGrads(
        q=torch.stack([tile.q for tile in tiles]).sum(dim=0), k=torch.cat([tile.k for tile in tiles], dim=1),
        v=torch.cat([tile.v for tile in tiles], dim=1), scores=torch.cat([tile.scores for tile in tiles], dim=2),
        sinks=(weight * row).sum(dim=1),
    )  # fmt: skip


def _tile_gradients(p: Piece, keys: slice, lse: torch.Tensor, flow: tuple[torch.Tensor, torch.Tensor]) -> PieceGrads:
    """The gradients that one tile of keys has a part in; `flow` is d_out and d_lse - rowsum(dO out)."""
    d_out, row = flow
    k, v = spread(p, p.k[:, keys]), spread(p, p.v[:, keys])
    product = p.q @ k.mT
    weights = torch.exp(logits(p, product, keys=keys) - finite_shift(lse)[..., None])
    d_weights = dropped(p, d_out @ v.mT, keys=keys)
    d_scores = torch.where(p.visible[:, :, keys], weights * (d_weights + row[..., None]), 0.0)
    inner = d_scores * p.scale
    if p.softcap is not None:
        inner = inner / torch.cosh(product * p.scale / p.softcap).square()
    inner = torch.where(p.visible[:, :, keys], inner, 0.0)
    return PieceGrads(
        q=inner @ k, k=gathered(p, inner.mT @ p.q), v=gathered(p, dropped(p, weights, keys=keys).mT @ d_out),
        scores=d_scores, sinks=row,
    )  # fmt: skip
