"""Scores and weights of one sequence.

    raw    = scale * q.k                          scaled after the product, in the compute dtype
    score  = cap * tanh(raw / cap) + bias - slope * |distance|
    weight = exp(score - max) / (sum over visible keys of exp(score - max) + exp(sink - max))
    lse    = max + ln(that sum)                   natural log; a sink is in it once, unscaled, and has no value

A scale outside the compute dtype's range gives inf or NaN, as any product that overflows; a softcap there is none.

Query head h reads KV head h // ratio: the heads of a group are stacked as rows of one product, K is never repeated.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

MINUS_INF = float("-inf")


def grouped(tensor: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """[Hq, rows, width] as [Hkv, ratio * rows, width]: the query heads of a group, one below the other."""
    heads, rows, width = tensor.shape
    return tensor.reshape(kv_heads, heads // kv_heads * rows, width)


def raw_scores(q: torch.Tensor, k: torch.Tensor, scale: float) -> torch.Tensor:
    """Scaled products q.k for q [Hq, Sq, D], k [Hkv, Sk, D]: [Hq, Sq, Sk]."""
    product = grouped(q, k.shape[0]) @ k.transpose(1, 2)
    return product.reshape(q.shape[0], q.shape[1], k.shape[1]) * scale


def capped(raw: torch.Tensor, cap: float | None) -> torch.Tensor:
    """The softcap cap * tanh(raw / cap), or raw where there is no cap."""
    cap = _within_range(cap, raw.dtype)
    return raw if cap is None else cap * torch.tanh(raw / cap)


def cap_slope(raw: torch.Tensor, cap: float) -> torch.Tensor:
    """The derivative of `capped`: 1 - tanh(raw / cap)^2."""
    within = _within_range(cap, raw.dtype)
    return torch.ones_like(raw) if within is None else 1.0 - torch.tanh(raw / within).square()


def _within_range(cap: float | None, dtype: torch.dtype) -> float | None:
    """The cap as a number of that dtype: none where it is larger than any, the least one where it would be 0."""
    limits = torch.finfo(dtype)
    return None if cap is None or cap > limits.max else max(cap, limits.tiny)


def alibi(slopes: torch.Tensor, distance: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """-slope * |distance| for slopes [Hq], distance [Sq, Sk]: [Hq, Sq, Sk]."""
    return -slopes.to(dtype).reshape(-1, 1, 1) * distance.abs().to(dtype)


class Softmax(NamedTuple):
    """weights [Hq, Sq, Sk] are 0 at hidden keys; sink [Hq, Sq] is the weight of the sink; lse [Hq, Sq]."""

    weights: torch.Tensor
    sink: torch.Tensor
    lse: torch.Tensor


def softmax(scores: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor | None) -> Softmax:
    """Softmax of scores [Hq, Sq, Sk] over the visible keys and a sink [Hq]; a row that sees nothing weighs 0.

    Without sinks a column of -inf stands for them, so that a row always has something to take the maximum of.
    """
    heads, rows, _keys = scores.shape
    sink = scores.new_full((heads,), MINUS_INF) if sinks is None else sinks.to(scores.dtype)
    column = sink.reshape(-1, 1, 1).expand(heads, rows, 1)
    logits = torch.cat([scores.masked_fill(~visible, MINUS_INF), column], dim=-1)
    largest = logits.amax(dim=-1, keepdim=True)
    shift = largest.masked_fill(largest == MINUS_INF, 0.0)
    powers = torch.exp(logits - shift)
    total = powers.sum(dim=-1, keepdim=True)
    weights = powers / total.masked_fill(total == 0.0, 1.0)
    # A NaN that one key brought into its row stays out of the keys hidden from it.
    seen = weights[..., :-1].masked_fill(~visible, 0.0)
    return Softmax(seen, weights[..., -1], (shift + torch.log(total)).squeeze(-1))
