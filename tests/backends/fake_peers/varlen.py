"""Stands in for `torch.nn.attention.varlen.varlen_attn` on the CPU, with the habits of the real kernel that matter.

Rows of 16 bytes, widths of one multiple of 8, the scale above zero; a longest query of 1 beside grouped heads means one
row per sequence, whatever `cu_seq_q` says; keys behind a sequence are left out, keys that a window hides get a weight
of 0; a row that sees nothing has an LSE of +inf; windows are said in terms of `max_k`. Every call's arguments are kept in `calls`.
"""

from __future__ import annotations

import torch

calls: list[dict] = []


def varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None,
                window_size=(-1, -1), enable_gqa=False):  # fmt: skip
    calls.append(dict(locals()))
    for tensor in (query, key, value):
        size = tensor.element_size()
        assert tensor.stride(-1) == 1
        assert all(step * size % 16 == 0 and step > 0 for step in tensor.stride()[:-1])
        assert tensor.dtype in (torch.float16, torch.bfloat16)
    assert query.shape[-1] == key.shape[-1] == value.shape[-1]
    assert query.shape[-1] % 8 == 0
    assert query.shape[-1] <= 256
    assert scale > 0
    assert enable_gqa
    assert max_q > 1 or query.shape[1] == key.shape[1]
    rows, keys = cu_seq_q.tolist(), cu_seq_k.tolist()
    window_size = _taken(*window_size, max_k)
    out, lse = torch.zeros_like(query, dtype=torch.float64), torch.full((query.shape[1], query.shape[0]), torch.nan)
    parts, places = [], []
    for at, end, first, last in zip(rows, rows[1:], keys, keys[1:], strict=False):
        part, own = _sequence(query[at:end], key[first:last], value[first:last], scale, *window_size)
        parts.append(part)
        places.append((at, end))
        lse[:, at:end] = own
    tail = query[rows[-1] :].double() * 0
    out = torch.cat([*parts, tail]).to(query.dtype)
    return (out, lse) if return_aux is not None and return_aux.lse else out


def _taken(left, right, max_k):
    """What the kernel makes of a window: a bound of `max_k` is none, and no bound beside another is one of `max_k`."""
    left, right = (-1 if bound >= max_k else bound for bound in (left, right))
    if left >= 0 > right:
        return left, max_k
    return (max_k, right) if right >= 0 > left else (left, right)


def _sequence(q, k, v, scale, left, right):
    group = q.shape[1] // k.shape[1]
    q, k, v = (tensor.double().transpose(0, 1) for tensor in (q, k, v))
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.transpose(1, 2) * scale
    stands = torch.arange(q.shape[1]).unsqueeze(1) + k.shape[1] - q.shape[1]
    at = torch.arange(k.shape[1]).unsqueeze(0)
    hidden = torch.zeros(scores.shape[1:], dtype=torch.bool)
    if left >= 0:
        hidden |= at < stands - left
    if right >= 0:
        hidden |= at > stands + right
    scores = scores.masked_fill(hidden, -torch.inf)
    nothing = hidden.all(-1) if k.shape[1] else torch.ones(q.shape[1], dtype=torch.bool)
    lse = scores.logsumexp(-1) if k.shape[1] else scores.new_zeros(scores.shape[:-1])
    lse = torch.where(nothing, torch.inf, lse)
    weights = (scores - lse.unsqueeze(-1)).exp().masked_fill(nothing.unsqueeze(-1), 0.0)
    return (weights @ v).transpose(0, 1), lse.detach().float()
