"""The backend's door: `run`. Loaded by the registry, by name; fails then where numba finds no compiler and simulates none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from attn_backends.backends.numba_tiled.launch import NAMES, launch_of
from attn_backends.backends.numba_tiled.operands import operands_of
from attn_backends.numba_driver.plan import Calls, Plan
from attn_backends.numba_driver.toolchain import SIMULATED, require_compiler

if TYPE_CHECKING:
    from attn_backends.call import Call

if not SIMULATED:
    require_compiler()


def run(call: Call) -> None:
    """Write call.out and, where asked, call.lse; rows of no sequence get 0 and -inf."""
    if SIMULATED:
        from attn_backends.backends.numba_tiled.simulated import simulate

        simulate(call)
    else:
        _CALLS.run(call)


def plan_of(call: Call, _option: Any = None) -> Plan:
    """How calls of this kind run, on the current device."""
    between = None if call.out.dtype in NAMES else torch.float32
    written = call.out if between is None else torch.empty(call.out.shape, dtype=between, device=call.out.device)
    operands, device = operands_of(call, written), call.q.get_device()
    launch = None if operands is None else launch_of(operands, device)
    return Plan(device=device, launch=launch, between=between, clear=call.cu_seqlens_q is not None)


_CALLS = Calls(plan_of)
