"""Gradients of one sequence, written out.

    dP     = drop(dO . v)                        the same entries dropped, the same factor
    delta  = sum_j p_j dP_j                      = dO . out
    dS     = p (dP - delta + d_lse)              the gradient of score, float mask and sink alike (a sink has dP = 0)
    d_raw  = dS (1 - tanh(raw / cap)^2)          with a softcap
    dq     = scale d_raw k,   dk = scale sum_i d_raw q,   dv = sum_i drop(p) dO       summed over the group of heads

The weights are recomputed, not read back. Hidden entries contribute nothing, so a key that nobody sees gets exactly 0,
and a row without keys gives none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attn_backends.backends.eager.contributions import weighted_sum
from attn_backends.backends.eager.forward import Attention, attend, drop
from attn_backends.backends.eager.scores import cap_slope, grouped
from attn_backends.backends.eager.sequences import Sequence
from attn_backends.call import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceGrads:
    """q [Hq, Sq, D], k [Hkv, Sk, D], v [Hkv, Sk, Dv], scores [Hq, Sq, Sk] (= of a float mask), sinks [Hq]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scores: torch.Tensor
    sinks: torch.Tensor


def gradients(call: Call, sequence: Sequence, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> SequenceGrads:
    """d_out [Hq, seq_q, Dv] and d_lse [Hq, seq_q] or None, any dtype and strides."""
    attention = attend(call, sequence)
    kv_heads = attention.k.shape[0]
    d_out = torch.empty(d_out.shape, dtype=attention.q.dtype, device=d_out.device).copy_(d_out)
    d_rows = _row_gradient(call, attention, d_out, d_lse)
    d_scores = d_rows.scores
    d_raw = d_scores * call.softmax_scale
    if call.softcap is not None:
        d_raw = (d_raw * cap_slope(attention.raw, call.softcap)).masked_fill(~attention.visible, 0.0)

    visible = grouped(attention.visible, kv_heads)
    d_raw = grouped(d_raw, kv_heads)
    weights = grouped(drop(call, attention, attention.weights), kv_heads)
    seen_by, d_raw_by_key, weights_by_key = (x.transpose(1, 2) for x in (visible, d_raw, weights))
    return SequenceGrads(
        q=weighted_sum(d_raw, visible, attention.k).reshape(attention.q.shape),
        k=weighted_sum(d_raw_by_key, seen_by, grouped(attention.q, kv_heads)),
        v=weighted_sum(weights_by_key, seen_by, grouped(d_out, kv_heads)),
        scores=d_scores,
        sinks=d_rows.sinks,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowGradient:
    scores: torch.Tensor  # [Hq, Sq, Sk]
    sinks: torch.Tensor  # [Hq]


def _row_gradient(call: Call, attention: Attention, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> _RowGradient:
    """dS, and its sum over the rows at the sink."""
    kv_heads = attention.v.shape[0]
    product = grouped(d_out, kv_heads) @ attention.v.transpose(1, 2)
    d_weights = drop(call, attention, product.reshape(attention.weights.shape)).masked_fill(~attention.visible, 0.0)
    row = -(attention.weights * d_weights).sum(dim=-1)
    if d_lse is not None:
        row = row + d_lse.to(row.dtype)
    d_scores = attention.weights * (d_weights + row.unsqueeze(-1))
    d_sinks = (attention.sink_weights * row).masked_fill(attention.sink_weights == 0.0, 0.0)
    return _RowGradient(scores=d_scores.masked_fill(~attention.visible, 0.0), sinks=d_sinks.sum(dim=-1))
