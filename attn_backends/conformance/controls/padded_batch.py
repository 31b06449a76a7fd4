"""Control: gather, then dense: all sequences (packed, paged or ragged) padded into one batch and attended to at once.

One batched product over [B, Hq, Sq, Sk]; so it promises nothing about batch invariance, and has no backward.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from attn_backends.call import Call
from attn_backends.conformance.controls.declaring import manifest, paged, quantised, quantised_q
from attn_backends.conformance.controls.pieces import MINUS_INF, Piece, piece
from attn_backends.conformance.controls.places import at_lse, at_queries, places

_BOXES = (box(batch_invariant=[False]) for box in (quantised, quantised_q, paged))
MANIFEST = manifest("padded_batch", *_BOXES, backward=False)


def run(call: Call) -> None:
    """See `Call`."""
    with torch.no_grad():
        call.out.zero_()
        if call.lse is not None:
            call.lse.fill_(MINUS_INF)
        found = places(call)
        if found:
            out, lse = _attend([piece(call, place) for place in found])
            for place, rows, log in zip(found, out, lse, strict=True):
                at_queries(call.out, call, place).copy_(rows[:, : place.seq_q])
                if call.lse is not None:
                    at_lse(call.lse, place).copy_(log[:, : place.seq_q])


def _attend(pieces: list[Piece]) -> tuple[torch.Tensor, torch.Tensor]:
    """out [B, Hq, Sq, Dv] and lse [B, Hq, Sq] over the longest lengths."""
    group, first = pieces[0].group, pieces[0]
    q, k, v = (_batch([getattr(p, name) for p in pieces]) for name in ("q", "k", "v"))
    visible = _batch_2d([p.visible for p in pieces])
    product = torch.einsum("bghid,bgjd->bghij", q.unflatten(1, (-1, group)), k).flatten(1, 2)
    scores = product * first.scale
    if first.softcap is not None:
        scores = first.softcap * torch.tanh(scores / first.softcap)
    if first.added is not None:
        scores = scores + _batch_2d([p.added.expand(p.visible.shape) for p in pieces if p.added is not None])
    sink = first.sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    full = torch.cat([torch.where(visible, scores, MINUS_INF), sink], dim=-1)
    lse = full.logsumexp(dim=-1)
    weights = torch.where(torch.isneginf(lse)[..., None], 0.0, full.softmax(dim=-1))[..., :-1]
    if first.keep is not None:
        weights = weights * _batch_2d([p.keep for p in pieces if p.keep is not None]) * first.factor
    return torch.einsum("bghij,bgjd->bghid", weights.unflatten(1, (-1, group)), v).flatten(1, 2), lse


def _batch(rows: list[torch.Tensor]) -> torch.Tensor:
    """[H, S, W] of every sequence as [B, H, S, W], zeros behind."""
    return pad_sequence([r.transpose(0, 1) for r in rows], batch_first=True).transpose(1, 2)


def _batch_2d(rows: list[torch.Tensor]) -> torch.Tensor:
    """[Hq, Sq, Sk] of every sequence as [B, Hq, Sq, Sk], zeros behind."""
    tall, wide = max(r.shape[1] for r in rows), max(r.shape[2] for r in rows)
    return torch.stack([pad(r, (0, wide - r.shape[2], 0, tall - r.shape[1])) for r in rows])
