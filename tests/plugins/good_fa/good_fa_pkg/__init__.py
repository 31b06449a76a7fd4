"""The smallest honest backend: attention written out in torch, in float32."""

import torch


def run(call):
    """Write out [B, Sq, Hq, Dv] and, where it is asked for, lse [B, Hq, Sq]."""
    q, k, v = (tensor.float().transpose(1, 2) for tensor in (call.q, call.k, call.v))  # [B, H, S, D]
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)

    visible = visible_keys(q.shape[2], k.shape[2], call)
    v = v.masked_fill(~visible.any(dim=0)[:, None], 0.0)  # NaN where no query looks must not reach the sum
    scores = (call.softmax_scale * (q @ k.mT)).masked_fill(~visible, -torch.inf)
    lse = scores.logsumexp(dim=-1)
    weights = scores.softmax(dim=-1).masked_fill(~visible.any(dim=1)[:, None], 0.0)  # a row without keys: all zeros

    call.out.copy_((weights @ v).transpose(1, 2))
    if call.lse is not None:
        call.lse.copy_(lse)


def visible_keys(queries, keys, call):
    """Bool [Sq, Sk]: which key each query may see."""
    if not call.causal:
        return torch.ones(queries, keys, dtype=torch.bool, device=call.q.device)
    offset = keys - queries if call.causal_alignment == "bottom_right" else 0
    query_position = torch.arange(queries, device=call.q.device)[:, None] + offset
    return torch.arange(keys, device=call.q.device) <= query_position
