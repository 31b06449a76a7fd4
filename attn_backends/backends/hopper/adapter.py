"""The backend's door: `run`. Loaded by the registry, by name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from attn_backends.backends.hopper.descriptors import describable, heads_first
from attn_backends.backends.hopper.launch import chosen, launch_forward

if TYPE_CHECKING:
    from attn_backends.backends.hopper.configs import Config
    from attn_backends.call import Call


_LEAST = 1.2e-38  # of the scales that float32 holds and the GPU does not take for 0


def run(call: Call, config: Config | None = None) -> None:
    """Write call.out and, where asked, call.lse.

    config: a pipeline in place of the one that is shipped, to measure or to compile it.
    """
    if call.out.numel() == 0 or call.k.numel() == 0:
        _write_empty_rows(call)
        return
    q, k, v, out = (heads_first(tensor, call.layout) for tensor in (call.q, call.k, call.v, call.out))
    room = out if describable(out) else torch.empty(out.shape, dtype=out.dtype, device=out.device)
    # The kernel always writes the LSE: 4 bytes a row, and one kernel less to compile.
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if call.lse is None else call.lse
    q, scale = _with_positive_scale(q, call.softmax_scale)
    launch_forward(q, k, v, room, lse, scale, call.causal, config or chosen(q.shape[3], call.causal, q.shape[2]))
    if room is not out:
        out.copy_(room)


def _with_positive_scale(q: torch.Tensor, scale: float) -> tuple[torch.Tensor, float]:
    """The same scores from a positive scale: the kernel looks for the largest one before it scales them."""
    if abs(scale) < _LEAST:
        return q * 0, 1.0
    return (q, scale) if scale > 0 else (-q, -scale)


def _write_empty_rows(call: Call) -> None:
    call.out.zero_()
    if call.lse is not None:
        call.lse.fill_(-math.inf)
