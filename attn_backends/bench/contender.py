"""`Contender`: one backend bound to the inputs of a cell, checked, ready to be timed.

A backend is chosen by name through the public API (`select(..., backend=name)`, `attention(..., backend=name)`), so that
whatever the host checks, converts and counts is part of it. What is timed is what a user pays in a hot loop: the loaded
kernel of the decision for a forward cell, autograd's backward for a backward cell.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from attn_backends.api import attention
from attn_backends.bench.cell import Cell
from attn_backends.bench.inputs import Inputs
from attn_backends.bench.reference import Deviation, backward_deviation, forward_deviation, limit_of
from attn_backends.bench.results import ERROR, LOST, OUT_OF_MEMORY, REFUSED, WRONG, Json
from attn_backends.errors import AttnBackendsError, UnfitBackendError
from attn_backends.request import Request
from attn_backends.selector.decision import Decision
from attn_backends.selector.log.scrub import scrub_text
from attn_backends.selector.policy import Policy
from attn_backends.selector.select import select

MOST_TEXT = 300  # characters of an error that are kept


@dataclass(slots=True, eq=False)
class Contender:
    """A backend that takes part in a cell; `facts` go into its record."""

    name: str
    call: Callable[[], Any]
    facts: Json
    device_ms: list[float] = field(default_factory=list)
    host_ms: list[float] = field(default_factory=list)


def contender(name: str, cell: Cell, inputs: Inputs, *, check: bool = True) -> Contender | Json:
    """The backend ready to be timed, or the record of why it is not: refused, wrong, an error, out of memory.

    `check=False` is for one that was found right on a like cell already.
    """
    policy = Policy(numerics=frozenset({"exact", *cell.numerics}))
    try:
        decision = select(_request(cell, inputs), backend=name, policy=policy, device=_facts_of(inputs))
    except UnfitBackendError as error:
        return _refused(error, name)
    except AttnBackendsError as error:
        return {"status": REFUSED, "why": first_line(error)}
    try:
        if check:
            return _checked(decision, cell, inputs, policy)
        backward = cell.passes == "backward"
        return Contender(name, _walk(decision, inputs, policy) if backward else _kernel(decision, inputs), {})
    except Exception as error:  # noqa: BLE001  # whatever a backend raises is its result on this cell
        return failure(error)


def failure(error: BaseException) -> Json:
    """The record of a call that raised; says so where the device is lost with it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return {"status": OUT_OF_MEMORY, "why": first_line(error)}
    return {"status": ERROR if device_answers() else LOST, "why": first_line(error)}


def device_answers() -> bool:
    """Whether this process can still use its GPU; an illegal access takes the whole context away."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def first_line(error: BaseException) -> str:
    """What an error says, in short and without paths."""
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return scrub_text(f"{type(error).__name__}: {text}")[:MOST_TEXT]


def _checked(decision: Decision, cell: Cell, inputs: Inputs, policy: Policy) -> Contender | Json:
    chosen = decision.chosen
    limit = limit_of(cell, chosen.numerics if chosen else "exact")
    started = time.perf_counter()
    deviation, call = (_backward if cell.passes == "backward" else _forward)(decision, cell, inputs, policy)
    facts: Json = {
        "version": chosen.version if chosen else "", "numerics": chosen.numerics if chosen else "exact",
        "decision": decision.id, "error": deviation.to_json(limit),
        "first_call_s": round(time.perf_counter() - started, 3),
        "conversions": list(chosen.conversions) if chosen else [],
    }  # fmt: skip
    if not deviation.within(limit):
        return {"status": WRONG, "why": deviation.words(limit), **facts}
    return Contender(decision.backend or "", call, facts)


def _forward(decision: Decision, cell: Cell, inputs: Inputs, policy: Policy) -> tuple[Deviation, Callable[[], Any]]:
    """Checked through `attention()`; timed as the loaded kernel."""
    q, k, v, given = inputs.q, inputs.k, inputs.v, inputs.arguments
    with torch.no_grad():
        out = attention(q, k, v, **given, backend=decision.backend, policy=policy)
        deviation = forward_deviation(cell, inputs, _one(out))
        del out
    return deviation, _kernel(decision, inputs)


def _kernel(decision: Decision, inputs: Inputs) -> Callable[[], Any]:
    """The loaded kernel on the inputs, after its first call."""
    tensors = {name: value for name, value in inputs.arguments.items() if name not in _OF_THE_REQUEST}
    call = functools.partial(decision.load(), inputs.q, inputs.k, inputs.v, **tensors)
    with torch.no_grad():
        call()
    return call


_OF_THE_REQUEST = (
    "causal",
    "window_left",
    "softcap",
    "phase",
    "layout",
    "q_granularity",
    "k_granularity",
    "v_granularity",
)


def _backward(decision: Decision, cell: Cell, inputs: Inputs, policy: Policy) -> tuple[Deviation, Callable[[], Any]]:
    """The graph is recorded once and walked as often as it is timed."""
    call = _walk(decision, inputs, policy)
    there = forward_deviation(cell, inputs, call.args[0])
    back = backward_deviation(cell, inputs, call())
    return (back if not back.whole <= there.whole else there), call


def _walk(decision: Decision, inputs: Inputs, policy: Policy) -> functools.partial[Any]:
    """Autograd's backward from the output, which is recorded here."""
    wanted = (inputs.q, inputs.k, inputs.v)
    out = _one(attention(*wanted, **inputs.arguments, backend=decision.backend, policy=policy))
    return functools.partial(torch.autograd.grad, out, wanted, inputs.d_out, retain_graph=True)


def _one(out: torch.Tensor | tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return out[0] if isinstance(out, tuple) else out


def _request(cell: Cell, inputs: Inputs) -> Request:
    with torch.set_grad_enabled(cell.passes == "backward"):
        return Request.from_tensors(inputs.q, inputs.k, inputs.v, **inputs.arguments)


def _facts_of(inputs: Inputs) -> Any:
    from attn_backends.host.dispatch import device_of

    return device_of(inputs.q.device)


def _refused(error: UnfitBackendError, name: str) -> Json:
    reasons = error.decision.candidate(name).reasons if error.decision is not None else ()
    codes = list(dict.fromkeys(reason.code for reason in reasons if reason.code != "outranked"))
    why = "; ".join(reason.message for reason in reasons[:3]) or first_line(error)
    return {"status": REFUSED, "why": scrub_text(why)[:MOST_TEXT], "codes": codes}
