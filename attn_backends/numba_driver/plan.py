"""`Calls`: what a backend runs. A call of a kind that was seen before costs a look in a table and its seven addresses.

Calls are of one kind if they differ in addresses alone: `kind_of`. A thread has its own plans, for they hold the memory that
parameters are packed into; the oldest ones go when there are MOST.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from attn_backends.numba_driver import driver

if TYPE_CHECKING:
    from attn_backends.call import Call

MOST = 1024  # plans of a thread, each some 2 KB
ALIGNED = 16  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How calls of one kind run."""

    device: int
    # Called with the addresses of q, k, v, out, lse and both cu_seqlens; None where there is nothing to launch.
    launch: Callable[..., None] | None
    between: torch.dtype | None = None  # of the output, where the kernel writes elsewhere first
    clear: bool = False  # whether out and lse are filled with those of rows that see nothing first


class Calls(threading.local):
    """A thread's plans, made by `prepare(call, option)` with the call's device as the current one."""

    def __init__(self, prepare: Callable[[Call, Any], Plan]) -> None:
        self._prepare = prepare
        self._plans: dict[tuple[Any, ...], Plan] = {}

    def run(self, call: Call, option: Any = None) -> None:
        """Write call.out and, where asked, call.lse. `option`: whatever else `prepare` shall know."""
        kind = kind_of(call, option)
        plan = self._plans.get(kind)
        if plan is None:
            plan = self._planned(kind, call, option)
        if plan.device == torch._C._cuda_getDevice():
            _run(plan, call)
        else:
            with torch.cuda.device(plan.device):
                _run(plan, call)

    def _planned(self, kind: tuple[Any, ...], call: Call, option: Any) -> Plan:
        with torch.cuda.device(call.q.get_device()):
            driver.ensure_context(call.q.get_device())
            plan = self._prepare(call, option)
        while len(self._plans) >= MOST:
            del self._plans[next(iter(self._plans))]
        self._plans[kind] = plan
        return plan


def kind_of(call: Call, option: Any = None) -> tuple[Any, ...]:
    """All of a call that a kernel may depend on, but addresses."""
    q, k, v, out, lse = call.q, call.k, call.v, call.out, call.lse
    starts_q, starts_k = call.cu_seqlens_q, call.cu_seqlens_k
    return (
        option, q.get_device(), q.dtype, q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(),
        out.dtype, out.stride(), out.data_ptr() % ALIGNED == 0, None if lse is None else lse.stride(),
        None if starts_q is None else (starts_q.shape, starts_q.stride()),
        None if starts_k is None else (starts_k.shape, starts_k.stride()), call.max_seqlen_q,
        call.layout, call.causal, call.causal_alignment, call.window_left, call.window_right, call.softmax_scale, call.softcap,
    )  # fmt: skip


def _run(plan: Plan, call: Call) -> None:
    """On the current device, which is the plan's."""
    out, lse, starts_q, starts_k = call.out, call.lse, call.cu_seqlens_q, call.cu_seqlens_k
    written = out if plan.between is None else torch.empty(out.shape, dtype=plan.between, device=out.device)
    if plan.clear:
        written.zero_()
        if lse is not None:
            lse.fill_(float("-inf"))
    if plan.launch is not None:
        plan.launch(
            call.q.data_ptr(), call.k.data_ptr(), call.v.data_ptr(), written.data_ptr(), 0 if lse is None else lse.data_ptr(),
            0 if starts_q is None else starts_q.data_ptr(), 0 if starts_k is None else starts_k.data_ptr(),
        )  # fmt: skip
    if written is not out:
        out.copy_(written)
