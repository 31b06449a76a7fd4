"""Undeclared requests: refused by the selector and by `attention()`, under the right codes and no others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import attn_backends
from attn_backends.capability import DEVICE_KINDS, GRAPH_LEVELS, TABLE
from attn_backends.conformance.case import Case
from attn_backends.conformance.case_request import request_of
from attn_backends.conformance.checks.against_oracle import judged_forward
from attn_backends.conformance.checks.calling import attend
from attn_backends.conformance.checks.check import Check, Context, Finding
from attn_backends.conformance.flips import ON_REQUEST, small_enough
from attn_backends.conformance.inputs import make_inputs
from attn_backends.conformance.outcome import Outcome
from attn_backends.conformance.standing import standing
from attn_backends.device import Device
from attn_backends.errors import UnfitBackendError
from attn_backends.request import Request

ACCEPTED = "accepted what is not declared"


def refused(context: Context, case: Case, axis: str) -> Finding:
    """The selector refuses under the axes that are missed, `axis` among them; so does a real call."""
    asked = _question(context, case, axis)
    if asked is None:
        return Finding(ok=True, message=f"everything on {axis} is declared")
    request, device = asked
    stands = standing(context.manifest.boxes, request, device)
    if stands.fits:
        return Finding(ok=False, message="the test is wrong: the request is declared", outcome=Outcome.FAIL)
    codes = _codes(context, request, device)
    if codes is None:
        return _accepted(context, case)
    if set(codes) != set(stands.axes):
        text = f"refused under {', '.join(codes)}; what is missed is {', '.join(stands.axes)}"
        return Finding(ok=False, message=text)
    if axis in ON_REQUEST or not small_enough(case):
        return Finding(ok=True, message=", ".join(codes))
    return _refuses_the_call(context, case, codes)


def _question(context: Context, case: Case, axis: str) -> tuple[Request, Device] | None:
    """The request and the device to ask about; None where everything on the axis is declared."""
    request, device = request_of(case), context.facts
    if axis not in ON_REQUEST:
        return request, device
    for one, place in _variants(request, device, axis):
        if axis in standing(context.manifest.boxes, one, place).axes:
            return one, place
    return None


def _variants(request: Request, device: Device, axis: str) -> list[tuple[Request, Device]]:
    if axis == "device":
        gpu = (9, 0) if device.arch is None else device.arch
        arches = {"cuda": gpu, "rocm": gpu}
        return [(request, Device(kind=kind, name=kind, arch=arches.get(kind))) for kind in DEVICE_KINDS]
    if axis == "arch":
        known = ((7, 0), (7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0), (13, 0))
        return [(request, dataclasses.replace(device, arch=arch)) for arch in known if device.arch is not None]
    if axis == "graph":
        return [(request.replace(graph=level), device) for level in GRAPH_LEVELS]
    if axis == "compile":
        return [(request.replace(compile=True), device)]
    return [(request.replace(unknown=("a_feature_of_tomorrow",)), device)]


def _codes(context: Context, request: Request, device: Device) -> tuple[str, ...] | None:
    """The reason codes of the refusal; None if the selector accepts."""
    try:
        attn_backends.select(request, backend=context.backend, policy=context.policy(), device=device)
    except UnfitBackendError as error:
        candidate = error.decision.candidate(context.backend) if error.decision else None
        return tuple(dict.fromkeys(reason.code for reason in candidate.reasons)) if candidate else ()
    return None


def _accepted(context: Context, case: Case) -> Finding:
    """An undeclared request was let through: wrong numbers make it the worst outcome."""
    if not small_enough(case):
        return Finding(ok=False, message=ACCEPTED)
    inputs = make_inputs(case, context.device)
    try:
        finding = judged_forward(context, case, inputs, attend(context, inputs))
    except Exception as error:  # noqa: BLE001  # whatever a kernel says to what it never promised
        return Finding(ok=False, message=f"{ACCEPTED}, then raised {type(error).__name__}: {error}")
    if finding.ok:
        return Finding(ok=False, message=f"{ACCEPTED}; the result is right")
    return Finding(ok=False, message=f"{ACCEPTED}; {finding.message}", outcome=Outcome.SILENT_WRONG)


def _refuses_the_call(context: Context, case: Case, codes: tuple[str, ...]) -> Finding:
    """`attention()` with real tensors says the same."""
    inputs = make_inputs(case, context.device)
    try:
        attend(context, inputs)
    except UnfitBackendError:
        return Finding(ok=True, message=", ".join(codes))
    return _accepted(context, case)


def _refusal(axis: str) -> Callable[[Context, Case], Finding]:
    return lambda context, case: refused(context, case, axis)


CHECKS = (
    *(
        Check(name=f"refused-{row.axis}", kind="refusal", run=_refusal(row.axis), clauses=("REFUSE-1",),
              applies=lambda _case: True)
        for row in TABLE
    ),
)  # fmt: skip
