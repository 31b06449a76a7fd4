"""The formula in float64, dense and naive, with gradients written out: what the torch backends are judged by.

Everything is [B, H, S, D] on the CPU. Nothing of `attn_backends` is used here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass
class Truth:
    visible: torch.Tensor  # bool [B, Hq, Sq, Sk]
    out: torch.Tensor
    lse: torch.Tensor
    weights: torch.Tensor
    scores: torch.Tensor  # scaled, capped, biased


def visible_keys(case, mask, seq_lens):
    """bool [B, Hq, Sq, Sk], one row and key at a time."""
    visible = torch.zeros(case.batch, case.q_heads, case.seq_q, case.seq_k, dtype=torch.bool)
    for b in range(case.batch):
        keys = case.seq_k if seq_lens is None else int(seq_lens[b])
        offset = keys - case.seq_q if case.alignment == "bottom_right" else 0
        for i in range(case.seq_q):
            low, high = 0, keys - 1
            if case.causal:
                high = min(high, i + offset)
            if case.right >= 0:
                high = min(high, i + offset + case.right)
            if case.left >= 0:
                low = max(low, i + offset - case.left)
            if low <= high:
                visible[b, :, i, low : high + 1] = True
    if mask is None:
        return visible
    return visible & (mask if mask.dtype == torch.bool else mask != -torch.inf)


def forward(case, q, k, v, scale, mask=None, seq_lens=None, slopes=None):
    """Out and LSE, with NaN-free operands: what no row sees must not matter, so it is not read."""
    visible = visible_keys(case, mask, seq_lens)
    ratio = case.q_heads // case.kv_heads
    k, v = (t.double().repeat_interleave(ratio, 1) for t in (k, v))
    scores = scale * (q.double() @ k.mT)
    if case.softcap is not None:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask.double()
    if slopes is not None:
        offset = case.seq_k - case.seq_q if case.alignment == "bottom_right" else 0
        distance = (torch.arange(case.seq_q)[:, None] + offset - torch.arange(case.seq_k)[None, :]).abs()
        scores = scores - slopes.double().view(-1, case.q_heads, 1, 1) * distance
    hidden = scores.masked_fill(~visible, -torch.inf)
    top = hidden.amax(-1, keepdim=True) if case.seq_k else torch.full((*hidden.shape[:3], 1), -torch.inf).double()
    top = torch.where(top == -torch.inf, torch.zeros_like(top), top)
    powers = torch.where(visible, torch.exp(hidden - top), 0.0)
    total = powers.sum(-1, keepdim=True)
    weights = torch.where(total > 0, powers / total, torch.zeros_like(powers))
    lse = (top + torch.log(total)).squeeze(-1)
    return Truth(visible, weights @ v, lse, weights, scores)


def backward(case, truth, q, k, v, scale, d_out, d_lse=None):
    """dq, dk, dv and d(scores) = d(bias) [B, Hq, Sq, Sk]."""
    ratio = case.q_heads // case.kv_heads
    wide_k, wide_v = (t.double().repeat_interleave(ratio, 1) for t in (k, v))
    d_out = d_out.double()
    inner = (d_out * truth.out).sum(-1, keepdim=True)
    if d_lse is not None:
        inner = inner - d_lse.double().unsqueeze(-1)
    d_scores = truth.weights * (d_out @ wide_v.mT - inner)
    d_raw = d_scores
    if case.softcap is not None:
        raw = scale * (q.double() @ wide_k.mT)
        d_raw = d_scores * (1 - torch.tanh(raw / case.softcap) ** 2)
    dq = scale * (d_raw @ wide_k)
    dk = scale * (d_raw.mT @ q.double())
    dv = truth.weights.mT @ d_out
    groups = (case.batch, case.kv_heads, ratio, case.seq_k)
    return dq, dk.reshape(*groups, case.head_dim).sum(2), dv.reshape(*groups, case.width_v).sum(2), d_scores
