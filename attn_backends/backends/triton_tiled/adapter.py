"""The backend's two doors: `run` and `backward`. Loaded by the registry, by name."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from attn_backends.backends.triton_tiled.gradients import (
    Incoming,
    keys_launches,
    launch_bias,
    queries_launch,
    rows_launch,
)
from attn_backends.backends.triton_tiled.launch import launch_forward
from attn_backends.backends.triton_tiled.operands import operands_of, rows_like
from attn_backends.backends.triton_tiled.together import launch_all
from attn_backends.call import Grads

if TYPE_CHECKING:
    from attn_backends.call import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What `run` keeps for `backward` where the call does not hold it: rows [B, H, S] or [H, T], float32.

    lse: None where the call has one; tops: with a float mask, each row's maximum and the rest of its LSE
    out: the output in q's dtype, where the call's is narrower
    """

    lse: torch.Tensor | None
    tops: tuple[torch.Tensor, torch.Tensor] | None
    out: torch.Tensor | None


def run(call: Call) -> None:
    """Write call.out and, where asked, call.lse."""
    operands = operands_of(call)
    narrow = call.out.element_size() < call.q.element_size()
    whole = dataclasses.replace(call, out=torch.empty_like(call.out, dtype=call.q.dtype)) if narrow else call
    lse = rows_like(call) if call.needs_backward and call.lse is None else call.lse
    tops = None
    if call.needs_backward and lse is not None and operands.flags["BIAS"]:
        tops = (torch.empty_like(lse), torch.empty_like(lse))
    launch_forward(whole, operands, lse, tops=tops)
    if narrow:
        call.out.copy_(whole.out)
    if not call.needs_backward:
        return
    call.saved = Saved(lse=lse if call.lse is None else None, tops=tops, out=whole.out if narrow else None)


def backward(call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
    """Gradients of q, k, v and, where the call asks, of the float mask and the sinks.

    d_out, d_lse: any strides; d_lse None = zero.
    """
    operands = operands_of(call)
    saved: Saved = call.saved
    lse = call.lse if saved.lse is None else saved.lse
    out = call.out if saved.out is None else saved.out
    if lse is None:
        raise ValueError("a call whose forward did not keep its LSE has no backward")
    rows, delta, norms, sink_parts = rows_launch(call, operands, out, lse, d_out, d_lse)
    incoming = Incoming(call=call, operands=operands, d_out=d_out, norms=saved.tops or (norms, None), delta=delta)
    grads = Grads(q=_unset(call.q, call), k=_unset(call.k, call), v=_unset(call.v, call))
    launch_all([rows, *keys_launches(incoming, grads.k, grads.v), queries_launch(incoming, grads.q)])
    if sink_parts is not None:
        grads.sinks = sink_parts.sum((0, 2))
    if call.grad_bias and operands.flags["BIAS"]:
        grads.bias = launch_bias(incoming)
    return grads


def _unset(like: torch.Tensor, call: Call) -> torch.Tensor:
    """Room for a gradient: contiguous, and 0 where tokens may belong to no sequence."""
    ragged = call.cu_seqlens_q is not None or call.seq_lens is not None
    return (torch.zeros if ragged else torch.empty)(like.shape, dtype=like.dtype, device=like.device)
