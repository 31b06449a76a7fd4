"""Control: every dim padded with zeros to what a kernel's tiles would want (queries 16, keys 32, widths 64), then cut.

Padded keys are hidden, padded channels multiply by 0; the scale stays that of the logical width.
"""

from __future__ import annotations

import dataclasses

import torch
from torch.nn.functional import pad

from attn_backends.call import Call, Grads
from attn_backends.conformance.controls.declaring import dense, manifest, paged
from attn_backends.conformance.controls.pieces import Piece, PieceGrads, backward_pieces, run_pieces
from attn_backends.conformance.controls.steps import dropped, far_off, finite_shift, logits, spread, textbook_gradients

MANIFEST = manifest("padded_width", dense(), paged(page_size={"multiple_of": 16}))
ROWS, KEYS, WIDTH = 16, 32, 64


def run(call: Call) -> None:
    """See `Call`."""
    run_pieces(call, _attend)


def backward(call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
    """See `Call`."""
    return backward_pieces(call, _differentiate, d_out, d_lse)


def _missing(size: int, step: int) -> int:
    return -size % step if size else step


def _padded(p: Piece) -> Piece:
    rows, keys = _missing(p.q.shape[1], ROWS), _missing(p.k.shape[1], KEYS)
    added = None if p.added is None else pad(p.added.expand(p.visible.shape), (0, keys, 0, rows))
    return dataclasses.replace(
        p,
        q=pad(p.q, (0, _missing(p.q.shape[2], WIDTH), 0, rows)),
        k=pad(p.k, (0, _missing(p.k.shape[2], WIDTH), 0, keys)),
        v=pad(p.v, (0, _missing(p.v.shape[2], WIDTH), 0, keys)),
        visible=pad(p.visible, (0, keys, 0, rows)),
        added=added,
        keep=None if p.keep is None else pad(p.keep, (0, keys, 0, rows)),
    )


def _softmax(p: Piece) -> tuple[torch.Tensor, torch.Tensor]:
    scores = logits(p, p.q @ spread(p, p.k).mT)
    far = far_off(scores, p.sinks)
    scores = scores - far[..., None]
    lse = torch.logaddexp(scores.logsumexp(dim=-1), p.sinks[:, None] - far)
    return torch.exp(scores - finite_shift(lse)[..., None]), lse + far


def _attend(p: Piece) -> tuple[torch.Tensor, torch.Tensor]:
    wide = _padded(p)
    weights, lse = _softmax(wide)
    out = dropped(wide, weights) @ spread(wide, wide.v)
    return out[:, : p.q.shape[1], : p.v.shape[2]], lse[:, : p.q.shape[1]]


def _differentiate(p: Piece, d_out: torch.Tensor, d_lse: torch.Tensor) -> PieceGrads:
    wide = _padded(p)
    rows, keys = p.q.shape[1], p.k.shape[1]
    flow_out = pad(d_out, (0, wide.v.shape[2] - p.v.shape[2], 0, wide.q.shape[1] - rows))
    flow_lse = pad(d_lse, (0, wide.q.shape[1] - rows))
    grads = textbook_gradients(wide, *_softmax(wide), (flow_out, flow_lse))
    return PieceGrads(
        q=grads.q[:, :rows, : p.q.shape[2]],
        k=grads.k[:, :keys, : p.k.shape[2]],
        v=grads.v[:, :keys, : p.v.shape[2]],
        scores=grads.scores[:, :rows, :keys],
        sinks=grads.sinks,
    )
