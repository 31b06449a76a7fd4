"""The eager backend's two doors: `run` and `backward`, one loop over the sequences of a call.

    s   = scale * q.k;  s = cap * tanh(s / cap);  s = s + bias - slope * |distance|
    p   = softmax over the visible keys and the sink
    out = sum_j drop(p)_j v_j,   lse = ln sum_j exp(s_j)

Each sequence is computed by itself and from copies with one memory order, so its result depends neither on its batch
mates nor on strides. Reads lengths on the host, hence declares no graph level. Loaded by the registry, by name.
"""

from __future__ import annotations

import torch

from attn_backends.backends.eager.forward import attend, output
from attn_backends.backends.eager.gradients import gradients
from attn_backends.backends.eager.mask import add_reduced
from attn_backends.backends.eager.precision import compute_dtype, exact_math
from attn_backends.backends.eager.sequences import key_rows, lse_rows, query_rows, sequences
from attn_backends.block_mask import as_four_dims, corner, sequence_entry
from attn_backends.call import Call, Grads


def run(call: Call) -> None:
    """Write call.out and, if asked, call.lse; rows of no sequence get 0 and -inf."""
    with exact_math(call.q.device):
        call.out.zero_()
        if call.lse is not None:
            call.lse.fill_(float("-inf"))
        for sequence in sequences(call):
            attention = attend(call, sequence)
            query_rows(call.out, call, sequence).copy_(output(call, attention))
            if call.lse is not None:
                lse_rows(call.lse, sequence).copy_(attention.lse)


def backward(call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
    """Gradients for q, k, v and, where the call asks, the float mask and the sinks.

    d_out: as call.out, any strides; d_lse: as call.lse, or None for zero. Recomputes the weights; needs no `saved`.
    """
    grads = _zeros(call)
    bias, sinks = _accumulators(call)
    with exact_math(call.q.device):
        for sequence in sequences(call):
            rows = None if d_lse is None else lse_rows(d_lse, sequence)
            one = gradients(call, sequence, query_rows(d_out, call, sequence), rows)
            query_rows(grads.q, call, sequence).copy_(one.q)
            key_rows(grads.k, call, sequence).copy_(one.k)
            key_rows(grads.v, call, sequence).copy_(one.v)
            if bias is not None:
                add_reduced(corner(sequence_entry(bias, sequence.index), sequence.seq_q, sequence.seq_k), one.scores)
            if sinks is not None:
                sinks += one.sinks
        if bias is not None and call.attn_mask is not None:
            grads.bias = bias.reshape(call.attn_mask.shape).to(call.attn_mask.dtype)
        if sinks is not None and call.sinks is not None:
            grads.sinks = sinks.to(call.sinks.dtype)
    return grads


def _zeros(call: Call) -> Grads:
    """Contiguous zeros: what no sequence owns (packed tails, keys behind seq_lens) keeps gradient 0."""
    return Grads(
        q=torch.zeros(call.q.shape, dtype=call.q.dtype, device=call.q.device),
        k=torch.zeros(call.k.shape, dtype=call.k.dtype, device=call.k.device),
        v=torch.zeros(call.v.shape, dtype=call.v.dtype, device=call.v.device),
    )


def _accumulators(call: Call) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Zeros in the compute dtype, into which every sequence adds: bias as [B|1, Hq|1, Sq|1, Sk|1], sinks [Hq]."""
    dtype = compute_dtype(call.q.dtype)
    bias = sinks = None
    if call.grad_bias and call.attn_mask is not None and call.attn_mask.is_floating_point():
        shape = as_four_dims(call.attn_mask).shape
        bias = torch.zeros(shape, dtype=dtype, device=call.q.device)
    if call.grad_sinks and call.sinks is not None:
        sinks = torch.zeros(call.sinks.shape, dtype=dtype, device=call.q.device)
    return bias, sinks
