"""Two steps that many controls share: from products to logits, and back from their gradient to the products'.

logits = cap * tanh(scale * product / cap) + added,  -inf where hidden
"""

from __future__ import annotations

import torch

from attn_backends.conformance.controls.pieces import MINUS_INF, Piece, PieceGrads

ALL = slice(None)
FAR = 2.0**16  # there a float32 LSE comes in steps of 1/128, and at the lowest number it holds no ln(n) at all


def logits(p: Piece, product: torch.Tensor, rows: slice = ALL, keys: slice = ALL) -> torch.Tensor:
    """[Hq, rows, keys] from products q.k of those rows and keys."""
    scores = product * p.scale
    if p.softcap is not None:
        scores = torch.tanh(scores / p.softcap) * p.softcap
    if p.added is not None:
        scores = scores + p.added.expand(p.visible.shape)[:, rows, keys]
    return scores.masked_fill(~p.visible[:, rows, keys], MINUS_INF)


def d_product(p: Piece, product: torch.Tensor, d_scores: torch.Tensor, rows: slice = ALL) -> torch.Tensor:
    """The gradient of the products from that of the scores, 0 where hidden."""
    flow = d_scores * p.scale
    if p.softcap is not None:
        flow = flow * (1.0 - torch.tanh(product * p.scale / p.softcap) ** 2)
    return torch.where(p.visible[:, rows], flow, 0.0)


def spread(p: Piece, tensor: torch.Tensor) -> torch.Tensor:
    """[Hkv, ...] as [Hq, ...]: each KV head once per query head of its group."""
    return tensor.repeat_interleave(p.group, dim=0)


def gathered(p: Piece, tensor: torch.Tensor) -> torch.Tensor:
    """[Hq, ...] summed over each group: [Hkv, ...]."""
    return tensor.reshape(p.k.shape[0], p.group, *tensor.shape[1:]).sum(dim=1)


def dropped(p: Piece, weights: torch.Tensor, rows: slice = ALL, keys: slice = ALL) -> torch.Tensor:
    """Weights, or their gradient, behind dropout."""
    return weights if p.keep is None else torch.where(p.keep[:, rows, keys], weights * p.factor, 0.0)


def finite_shift(lse: torch.Tensor) -> torch.Tensor:
    """The LSE with 0 for -inf, so that exp(-inf - shift) is 0 and not NaN."""
    return torch.where(torch.isneginf(lse), 0.0, lse)


def far_off(scores: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """The largest logit of each row [..., rows] whose logits and sink lie farther than FAR from 0, and 0 for all others.

    Take it off logits and sinks and add it to the LSE, and exp(s - lse) holds for rows of the lowest number too (BIAS-2).
    """
    largest = sinks[..., None].expand(scores.shape[:-1])
    if scores.shape[-1]:
        largest = torch.maximum(largest, scores.amax(dim=-1))
    return torch.where((largest.abs() > FAR) & largest.isfinite(), largest, 0.0)


def sink_gradient(p: Piece, lse: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """[Hq]: the sink's weight times (d_lse - rowsum(dO out)), summed over rows."""
    weight = torch.exp(p.sinks[:, None] - finite_shift(lse))
    return (weight * row).sum(dim=1)


def textbook_gradients(
    p: Piece, weights: torch.Tensor, lse: torch.Tensor, flow: tuple[torch.Tensor, torch.Tensor]
) -> PieceGrads:
    """The chain rule over whole matrices, for controls whose forward is what differs: weights [Hq, Sq, Sk] undropped."""
    d_out, d_lse = flow
    k, v = spread(p, p.k), spread(p, p.v)
    d_weights = torch.where(p.visible, dropped(p, d_out @ v.mT), 0.0)
    row = d_lse - (weights * d_weights).sum(dim=-1)
    d_scores = weights * (d_weights + row[..., None])
    flow_in = d_product(p, p.q @ k.mT, d_scores)
    return PieceGrads(
        q=flow_in @ k,
        k=gathered(p, flow_in.mT @ p.q),
        v=gathered(p, dropped(p, weights).mT @ d_out),
        scores=d_scores,
        sinks=sink_gradient(p, lse, row),
    )
