"""Stands in for the package `fa3-fwd`: the same operator on the CPU, with the habits of the real kernel that matter.

It takes bfloat16 or e4m3 in rows of 16 bytes, widths that are multiples of 8 or 16, no window; it reads V in tiles, past
the end of a packed sequence, and gives what it finds there a weight of 0. Every call's arguments are kept in `calls`.
"""

from __future__ import annotations

import math

import torch

TILE = 64
calls: list[dict] = []


def _fwd(q, k, v, *, out=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None,
         q_descale=None, k_descale=None, v_descale=None, softmax_scale=None, is_causal=False, softcap=0.0, num_splits=0):  # fmt: skip
    calls.append(dict(locals()))
    for tensor in (q, k, v):
        _check_memory(tensor)
    assert softmax_scale > 0, "the maximum of a row is taken before the scale"
    fp8 = q.dtype == torch.float8_e4m3fn
    assert fp8 or q.dtype == torch.bfloat16
    multiple = 16 if fp8 else 8
    width, width_v = q.shape[-1], v.shape[-1]
    assert width % multiple == 0 == width_v % multiple
    assert max(width, width_v) <= 256
    assert width == width_v or (128 < width <= 192 and 96 < width_v <= 128) or width <= 64
    if out is None:
        out = torch.empty((*q.shape[:-1], width_v), dtype=torch.bfloat16)
    else:
        _check_memory(out)
        assert out.dtype == torch.bfloat16
        assert out.shape == (*q.shape[:-1], width_v)
    if cu_seqlens_q is None:
        lse = torch.stack([
            _sequence(q[b], k[b], v[b], out[b], softmax_scale, is_causal, softcap, _scales(b, q_descale, k_descale, v_descale))
            for b in range(q.shape[0])
        ])  # fmt: skip
        return out, lse, lse.new_empty(0), lse.new_empty(0)
    assert cu_seqlens_q.is_contiguous()
    assert cu_seqlens_k.is_contiguous()
    lse = torch.full((q.shape[1], q.shape[0]), math.nan)
    rows, keys = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    assert max_seqlen_q >= max(map(int.__sub__, rows[1:], rows))
    assert max_seqlen_k >= max(map(int.__sub__, keys[1:], keys))
    for at, end, first, last in zip(rows, rows[1:], keys, keys[1:], strict=False):
        tile_end = min(first + -(-(last - first) // TILE) * TILE, k.shape[0])
        lse[:, at:end] = _sequence(
            q[at:end], k[first:last], v[first:tile_end], out[at:end], softmax_scale, is_causal, softcap, (1.0, 1.0, 1.0)
        )
    return out, lse, lse.new_empty(0), lse.new_empty(0)


def _scales(b, *descales):
    return [1.0 if scale is None else scale[b].view(-1, 1, 1) for scale in descales]


def _sequence(q, k, v, out, scale, causal, softcap, descales):
    """One sequence [rows, Hq, D]; `v` may be longer than `k`. Writes `out`, returns the LSE [Hq, rows]."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (tensor.double().transpose(0, 1) for tensor in (q, k, v))
    k, v = k * descales[1], v * descales[2]
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    by_query_head = descales[0] if isinstance(descales[0], float) else descales[0].repeat_interleave(group, 0)
    scores = (q * by_query_head) @ k.transpose(1, 2) * scale
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    if causal:
        hidden = torch.ones(scores.shape[1:]).triu(k.shape[1] - q.shape[1] + 1).bool()
        scores = scores.masked_fill(hidden, -torch.inf)
    lse = scores.logsumexp(-1) if scores.shape[-1] else torch.full(scores.shape[:-1], -torch.inf, dtype=scores.dtype)
    weights = (scores - lse.masked_fill(lse == -torch.inf, 0.0).unsqueeze(-1)).exp()
    weights = torch.nn.functional.pad(weights, (0, v.shape[1] - k.shape[1]))
    out.copy_((weights @ v).transpose(0, 1))
    return lse.float()


def _check_memory(tensor):
    size = tensor.element_size()
    assert tensor.stride(-1) == 1 or tensor.shape[-1] == 1
    assert all(step * size % 16 == 0 and step > 0 for step in tensor.stride()[:-1])
    assert tensor.data_ptr() % 16 == 0


class fa3_fwd_cuda:  # noqa: N801  # the real name
    fwd = staticmethod(_fwd)
