"""Control: one KV head after the other; bias, product and scale in one `baddbmm` where no softcap stands between them."""

from __future__ import annotations

import torch

from attn_backends.call import Call, Grads
from attn_backends.conformance.controls.declaring import dense, manifest
from attn_backends.conformance.controls.pieces import MINUS_INF, Piece, PieceGrads, backward_pieces, run_pieces
from attn_backends.conformance.controls.steps import dropped, far_off, finite_shift, textbook_gradients

MANIFEST = manifest("baddbmm_heads", dense())


def run(call: Call) -> None:
    """See `Call`."""
    run_pieces(call, _attend)


def backward(call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
    """See `Call`."""
    return backward_pieces(call, _differentiate, d_out, d_lse)


def _scores(p: Piece, kv_head: int, heads: slice) -> torch.Tensor:
    """[group, Sq, Sk] of one KV head."""
    k = p.k[kv_head].mT.expand(p.group, -1, -1)
    zero = p.q.new_zeros(p.visible[heads].shape)
    added = zero if p.added is None else p.added.expand(p.visible.shape)[heads]
    if p.softcap is None:
        scores = torch.baddbmm(added, p.q[heads], k, alpha=p.scale)
    else:
        scores = added + p.softcap * torch.tanh(torch.baddbmm(zero, p.q[heads], k, alpha=p.scale / p.softcap))
    return scores.masked_fill(~p.visible[heads], MINUS_INF)


def _softmax(p: Piece) -> tuple[torch.Tensor, torch.Tensor]:
    weights, lses = [], []
    for kv_head in range(p.k.shape[0]):
        heads = slice(kv_head * p.group, (kv_head + 1) * p.group)
        scores = _scores(p, kv_head, heads)
        far = far_off(scores, p.sinks[heads])
        scores = scores - far[..., None]
        lse = torch.logaddexp(scores.logsumexp(dim=-1), p.sinks[heads, None] - far)
        weights.append(torch.exp(scores - finite_shift(lse)[..., None]))
        lses.append(lse + far)
    return torch.cat(weights), torch.cat(lses)


def _attend(p: Piece) -> tuple[torch.Tensor, torch.Tensor]:
    weights, lse = _softmax(p)
    parts = zip(dropped(p, weights).split(p.group), p.v, strict=True)
    return torch.cat([torch.bmm(part, v.expand(p.group, -1, -1)) for part, v in parts]), lse


def _differentiate(p: Piece, d_out: torch.Tensor, d_lse: torch.Tensor) -> PieceGrads:
    return textbook_gradients(p, *_softmax(p), (d_out, d_lse))
