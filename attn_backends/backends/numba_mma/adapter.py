"""The backend's door: `run`. Loaded by the registry, by name; fails then where numba finds no compiler."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from attn_backends.backends.numba_mma.config import Config, shipped
from attn_backends.backends.numba_mma.launch import launch
from attn_backends.backends.numba_mma.operands import capped, operands_of

if TYPE_CHECKING:
    from attn_backends.call import Call

HALVES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
UNIT = 8  # numbers of 16 bytes


def run(call: Call, config: Config | None = None) -> None:
    """Write call.out and, where asked, call.lse; rows of no sequence get 0 and -inf. `config`: to try others."""
    q, out = call.q, call.out
    if config is None:
        config = _shipped(q.shape[-1], q.dtype, capped(call))
    written = out if _writable(out, call) else torch.empty(out.shape, dtype=q.dtype, device=q.device)
    made = operands_of(call, written, config.rows)
    if made is None:
        return
    device = q.get_device()
    if device == torch._C._cuda_getDevice():
        launch(config, device, *made)
    else:
        with torch.cuda.device(device):
            launch(config, device, *made)
    if written is not out:
        out.copy_(written)


@cache
def _shipped(head_dim: int, dtype: torch.dtype, softcap: bool) -> Config:
    return shipped(head_dim, HALVES[dtype], softcap)


def _writable(out: torch.Tensor, call: Call) -> bool:
    """Whether the kernel can write there: numbers of q's type side by side, rows at multiples of 16 bytes."""
    if out.dtype != call.q.dtype or out.data_ptr() % 16:
        return False
    if out.is_contiguous():
        return True
    *outer, inner = zip(out.shape, out.stride(), strict=True)
    return inner[1] == 1 and all(extent == 1 or stride % UNIT == 0 for extent, stride in outer)
