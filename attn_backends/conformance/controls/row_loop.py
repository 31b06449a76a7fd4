"""Control: one query row after the other, over the keys that it sees and no others; hence safe from NaN elsewhere."""

from __future__ import annotations

import torch

from attn_backends.call import Call, Grads
from attn_backends.conformance.controls.declaring import dense, manifest
from attn_backends.conformance.controls.pieces import Piece, PieceGrads, backward_pieces, run_pieces
from attn_backends.conformance.controls.steps import far_off

MANIFEST = manifest("row_loop", dense(nan_safe=[False, True]))


def run(call: Call) -> None:
    """See `Call`."""
    run_pieces(call, _attend)


def backward(call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
    """See `Call`."""
    return backward_pieces(call, _differentiate, d_out, d_lse)


def _rows(p: Piece) -> list[tuple[int, int, torch.Tensor]]:
    """(head, row, indices of its keys) of every row that sees some."""
    heads, rows = p.visible.shape[:2]
    seen = [(h, i, p.visible[h, i].nonzero().flatten()) for h in range(heads) for i in range(rows)]
    return [(h, i, keys) for h, i, keys in seen if len(keys)]


def _row(p: Piece, h: int, i: int, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(score before the cap, weights, lse) of one row, all over its own keys."""
    raw = torch.mv(p.k[h // p.group, keys], p.q[h, i]) * p.scale
    score = raw if p.softcap is None else p.softcap * torch.tanh(raw / p.softcap)
    if p.added is not None:
        score = score + p.added.expand(p.visible.shape)[h, i, keys]
    far = far_off(score[None], p.sinks[h])[0]
    score = score - far
    lse = torch.logaddexp(torch.logsumexp(score, dim=0), p.sinks[h] - far)
    return raw, torch.exp(score - lse), lse + far


def _drop(p: Piece, values: torch.Tensor, h: int, i: int, keys: torch.Tensor) -> torch.Tensor:
    return values if p.keep is None else values * p.keep[h, i, keys] * p.factor


def _attend(p: Piece) -> tuple[torch.Tensor, torch.Tensor]:
    out = p.q.new_zeros((*p.q.shape[:2], p.v.shape[-1]))
    lse = p.sinks[:, None].expand(p.q.shape[:2]).clone()
    for h, i, keys in _rows(p):
        _raw, weights, lse[h, i] = _row(p, h, i, keys)
        out[h, i] = _drop(p, weights, h, i, keys) @ p.v[h // p.group, keys]
    return out, lse


def _differentiate(p: Piece, d_out: torch.Tensor, d_lse: torch.Tensor) -> PieceGrads:
    grads = PieceGrads(
        q=torch.zeros_like(p.q),
        k=torch.zeros_like(p.k),
        v=torch.zeros_like(p.v),
        scores=p.q.new_zeros(p.visible.shape),
        sinks=torch.where(p.visible.any(dim=-1), 0.0, d_lse).double().sum(dim=1) * (p.sinks != float("-inf")),
    )
    for h, i, keys in _rows(p):
        grads.sinks[h] += _row_gradient(p, (h, i, keys), (d_out[h, i], d_lse[h, i]), grads)
    return grads


def _row_gradient(
    p: Piece, where: tuple[int, int, torch.Tensor], flow: tuple[torch.Tensor, torch.Tensor], grads: PieceGrads
) -> torch.Tensor:
    """Add one row's gradients; returns the sink's."""
    h, i, keys = where
    d_out, d_lse = flow
    g = h // p.group
    raw, weights, lse = _row(p, h, i, keys)
    d_weights = _drop(p, p.v[g, keys] @ d_out, h, i, keys)
    row = d_lse - torch.dot(weights, d_weights)
    d_score = weights * (d_weights + row)
    d_raw = d_score if p.softcap is None else d_score * (1 - torch.tanh(raw / p.softcap).square())
    grads.scores[h, i, keys] = d_score
    grads.q[h, i] = p.scale * (d_raw @ p.k[g, keys])
    grads.k[g].index_add_(0, keys, p.scale * torch.outer(d_raw, p.q[h, i]))
    grads.v[g].index_add_(0, keys, torch.outer(_drop(p, weights, h, i, keys), d_out))
    return torch.exp(p.sinks[h] - lse).double() * row.double()
