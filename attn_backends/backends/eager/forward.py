"""Attention of one sequence, from reading its tensors to its output; the gradients start from the same record."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attn_backends.backends.eager.contributions import weighted_sum, zero_unseen
from attn_backends.backends.eager.dequantize import read_k, read_q, read_v
from attn_backends.backends.eager.mask import bias_of, distances, visible_keys
from attn_backends.backends.eager.philox import kept
from attn_backends.backends.eager.scores import alibi, capped, grouped, raw_scores, softmax
from attn_backends.backends.eager.sequences import Sequence
from attn_backends.call import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Everything about one sequence, in the compute dtype.

    q [Hq, Sq, D], k [Hkv, Sk, D], v [Hkv, Sk, Dv]: keys that no row sees are 0
    raw, visible, weights: [Hq, Sq, Sk]; scaled scores before the softcap, what a row sees, softmax before dropout
    keep: bool [Hq, Sq, Sk], or None without dropout; sink_weights, lse: [Hq, Sq]
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    raw: torch.Tensor
    visible: torch.Tensor
    weights: torch.Tensor
    keep: torch.Tensor | None
    sink_weights: torch.Tensor
    lse: torch.Tensor


def attend(call: Call, sequence: Sequence) -> Attention:
    """Weights and LSE of one sequence."""
    q, k, v = read_q(call, sequence), read_k(call, sequence), read_v(call, sequence)
    distance = distances(call, sequence)
    visible = visible_keys(call, sequence, q.shape[0], distance)
    seen = grouped(visible, k.shape[0])
    k, v = zero_unseen(k, seen), zero_unseen(v, seen)
    raw = raw_scores(q, k, call.softmax_scale)
    scores = capped(raw, call.softcap)
    bias = bias_of(call, sequence)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if call.alibi_slopes is not None:
        slopes = call.alibi_slopes if call.alibi_slopes.dim() == 1 else call.alibi_slopes[sequence.index]
        scores = scores + alibi(slopes, distance, scores.dtype)
    weights, sink_weights, lse = softmax(scores, visible, call.sinks)
    keep = kept(call, sequence, q.shape[0]) if call.dropout_p > 0 else None
    return Attention(
        q=q, k=k, v=v, raw=raw, visible=visible, weights=weights, keep=keep, sink_weights=sink_weights, lse=lse
    )


def drop(call: Call, attention: Attention, weights: torch.Tensor) -> torch.Tensor:
    """Weights (or their gradients) behind dropout: kept entries times 1 / (1 - p), 0 elsewhere."""
    if attention.keep is None:
        return weights
    return (weights / (1.0 - call.dropout_p)).masked_fill(~attention.keep, 0.0)


def output(call: Call, attention: Attention) -> torch.Tensor:
    """[Hq, Sq, Dv]; exactly 0 where a row sees nothing."""
    kv_heads = attention.v.shape[0]
    weights = grouped(drop(call, attention, attention.weights), kv_heads)
    total = weighted_sum(weights, grouped(attention.visible, kv_heads), attention.v)
    return total.reshape(attention.q.shape[0], attention.q.shape[1], attention.v.shape[2])
