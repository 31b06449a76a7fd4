"""The backend's door: `run`. Loaded by the registry, by name; fails then where numba finds no compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attn_backends.backends.numba_mma.config import Config, shipped
from attn_backends.backends.numba_mma.launch import launch_of
from attn_backends.backends.numba_mma.operands import capped, operands_of
from attn_backends.numba_driver.plan import Calls, Plan

if TYPE_CHECKING:
    from attn_backends.call import Call

HALVES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
UNIT = 8  # numbers of 16 bytes


def run(call: Call, config: Config | None = None) -> None:
    """Write call.out and, where asked, call.lse; rows of no sequence get 0 and -inf. `config`: to try others."""
    _CALLS.run(call, config)


def plan_of(call: Call, config: Config | None) -> Plan:
    """How calls of this kind run, on the current device."""
    q, out = call.q, call.out
    config = config or shipped(q.shape[-1], HALVES[q.dtype], capped(call))
    there = _writable(out, call)
    written = out if there else torch.empty(out.shape, dtype=q.dtype, device=q.device)
    made, device = operands_of(call, written, config.rows), q.get_device()
    launch = None if made is None else launch_of(config, device, *made)
    return Plan(device=device, launch=launch, between=None if there else q.dtype)


def _writable(out: torch.Tensor, call: Call) -> bool:
    """Whether the kernel can write there: numbers of q's type side by side, rows at multiples of 16 bytes."""
    if out.dtype != call.q.dtype or out.data_ptr() % 16:
        return False
    if out.is_contiguous():
        return True
    *outer, inner = zip(out.shape, out.stride(), strict=True)
    return inner[1] == 1 and all(extent == 1 or stride % UNIT == 0 for extent, stride in outer)


_CALLS = Calls(plan_of)
