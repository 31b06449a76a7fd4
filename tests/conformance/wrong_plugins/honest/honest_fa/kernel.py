"""Attention of one sequence after the other, in float64: short, slow and right."""

import torch

from attn_backends.call import Grads


def run(call):
    """Write call.out [B, Sq, Hq, Dv] and, where it is asked for, call.lse [B, Hq, Sq]."""
    for b in range(len(call.q)):
        q, k, v = sequence(call, b)
        p, lse, _ = weights(call, b, q, k)
        v = v.masked_fill(~(p > 0).any(dim=1)[..., None], 0.0)  # NaN where no row looks must not reach the sum
        call.out[b] = (p @ v).transpose(0, 1)
        if call.lse is not None:
            call.lse[b] = lse


def sequence(call, b):
    """q [Hq, Sq, D], k [Hq, Sk, D], v [Hq, Sk, Dv] of sequence b: each query head beside the KV head that it reads."""
    q, k, v = call.q[b], *(x[b] if call.block_table is None else out_of_pages(call, b, x) for x in (call.k, call.v))
    head = torch.arange(q.shape[1]) // (q.shape[1] // k.shape[1])
    return [x.double().transpose(0, 1) for x in (q, k[:, head], v[:, head])]


def out_of_pages(call, b, cache):
    """Tokens [Sk, Hkv, width] of sequence b."""
    token = torch.arange(int(call.seq_lens[b]))
    page = call.block_table[b, token // cache.shape[1]].long()
    return cache[page, token % cache.shape[1]]


def weights(call, b, q, k):
    """p [Hq, Sq, Sk], lse [Hq, Sq] and the slope of the softcap [Hq, Sq, Sk]."""
    scores, slope = call.softmax_scale * (q @ k.mT), 1.0
    if call.softcap is not None:
        bent = torch.tanh(scores / call.softcap)
        scores, slope = call.softcap * bent, 1.0 - bent.square()
    scores = scores.masked_fill(~visible(call, b, q.shape[1], k.shape[1]), -torch.inf)
    lse = scores.logsumexp(dim=-1)
    return (scores - lse.nan_to_num(neginf=0.0)[..., None]).exp(), lse, slope


def visible(call, b, rows, keys):
    """Bool [1 | Hq, Sq, Sk]: which keys each row sees."""
    ahead = torch.arange(keys) - torch.arange(rows)[:, None] - (keys - rows)
    seen = (ahead <= 0)[None] if call.causal else torch.ones(1, rows, keys, dtype=torch.bool)
    if call.window_left >= 0:
        seen = seen & (ahead >= -call.window_left)
    if call.window_right >= 0:
        seen = seen & (ahead <= call.window_right)
    if call.attn_mask is not None:
        seen = seen & call.attn_mask.expand(len(call.q), call.q.shape[2], rows, -1)[b, ..., :keys]
    return seen


def backward(call, d_out, d_lse):
    """Gradients of q, k and v; those of keys are added up over blocks of rows, in float32."""
    grads = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (call.q, call.k, call.v)]
    for b in range(len(call.q)):
        q, k, v = sequence(call, b)
        p, _, slope = weights(call, b, q, k)
        dp = d_out[b].double().transpose(0, 1) @ v.mT
        row = (p * dp).sum(dim=-1, keepdim=True) - (0.0 if d_lse is None else d_lse[b].double()[..., None])
        ds = call.softmax_scale * slope * p * (dp - row)
        grads[0][b] = (ds @ k).transpose(0, 1)
        for grad, left, right in ((grads[1], ds, q), (grads[2], p, d_out[b].double().transpose(0, 1))):
            total = torch.zeros(len(q), k.shape[1], grad.shape[3], dtype=torch.promote_types(grad.dtype, torch.float32))
            for rows in torch.arange(q.shape[1]).split(4):
                total += left[:, rows].mT @ right[:, rows]
            grad[b] = total.unflatten(0, (grad.shape[2], -1)).sum(dim=1).transpose(0, 1)
    return Grads(q=grads[0], k=grads[1], v=grads[2])
