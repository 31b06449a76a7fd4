"""Control: the textbook by einsum, over query groups, with the sink as one more column of the softmax."""

from __future__ import annotations

import torch

from attn_backends.call import Call, Grads
from attn_backends.conformance.controls.declaring import dense, manifest, paged, quantised, quantised_q
from attn_backends.conformance.controls.pieces import MINUS_INF, Piece, PieceGrads, backward_pieces, run_pieces
from attn_backends.conformance.controls.steps import dropped, logits, textbook_gradients

MANIFEST = manifest("dense_einsum", dense(), quantised(), quantised_q(), paged())


def run(call: Call) -> None:
    """See `Call`."""
    run_pieces(call, _attend)


def backward(call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
    """See `Call`."""
    return backward_pieces(call, _differentiate, d_out, d_lse)


def _softmax(p: Piece) -> tuple[torch.Tensor, torch.Tensor]:
    q = p.q.unflatten(0, (-1, p.group))
    product = torch.einsum("ghid,gjd->ghij", q, p.k).flatten(0, 1)
    sink = p.sinks[:, None, None].expand(-1, product.shape[1], 1)
    full = torch.cat([sink, logits(p, product)], dim=-1)
    lse = full.logsumexp(dim=-1)
    weights = torch.where((lse == MINUS_INF)[..., None], 0.0, full.softmax(dim=-1))
    return weights[..., 1:], lse


def _attend(p: Piece) -> tuple[torch.Tensor, torch.Tensor]:
    weights, lse = _softmax(p)
    grouped = dropped(p, weights).unflatten(0, (-1, p.group))
    return torch.einsum("ghij,gjd->ghid", grouped, p.v).flatten(0, 1), lse


def _differentiate(p: Piece, d_out: torch.Tensor, d_lse: torch.Tensor) -> PieceGrads:
    return textbook_gradients(p, *_softmax(p), (d_out, d_lse))
