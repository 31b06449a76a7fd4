"""The backend's door: `run`. Loaded by the registry, by name.

16-bit tensors are quantised in one pass, e4m3 tensors are taken as they are; then one of the two kernels attends.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from attn_backends.backends.fp8.attend import attend, positive
from attn_backends.backends.fp8.given import given
from attn_backends.backends.fp8.quantize.launch import Sequences, quantized

if TYPE_CHECKING:
    from attn_backends.call import Call


def run(call: Call) -> None:
    """Write call.out and, where asked, call.lse."""
    if call.out.numel() == 0 or call.k.numel() == 0:
        _write_empty_rows(call)
        return
    q, k, v, out = (heads_first(tensor, call.layout) for tensor in (call.q, call.k, call.v, call.out))
    sequences = sequences_of(call, q, k)
    if call.q_format == "dense":
        scale = positive(call.softmax_scale)
        operands = quantized(q, k, v, sequences, softmax_scale=scale)
    else:
        operands = given(call, q, k, v, sequences)
    lse = call.lse.unsqueeze(0) if call.lse is not None and call.layout == "thd" else call.lse
    attend(operands, out, lse, call.softmax_scale, band_of(call))


def heads_first(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """A view [batch, head, token, width]; packed tokens are one batch entry."""
    if layout == "thd":
        return tensor.transpose(0, 1).unsqueeze(0)
    return tensor.transpose(1, 2) if layout == "bshd" else tensor


def sequences_of(call: Call, q: torch.Tensor, k: torch.Tensor) -> Sequences:
    """Where the call's sequences lie."""
    packed = call.cu_seqlens_q is not None
    return Sequences(
        batch=q.shape[0] if call.cu_seqlens_q is None else call.cu_seqlens_q.shape[0] - 1,
        longest_q=call.max_seqlen_q if packed else q.shape[2],
        longest_k=call.max_seqlen_k if packed else k.shape[2],
        starts_q=call.cu_seqlens_q,
        starts_k=call.cu_seqlens_k,
        left=call.window_left,
    )


def band_of(call: Call) -> tuple[int, int]:
    """Keys left and right of its own that a query sees, -1 = all."""
    return call.window_left, 0 if call.causal else call.window_right


def _write_empty_rows(call: Call) -> None:
    call.out.zero_()
    if call.lse is not None:
        call.lse.fill_(-math.inf)
