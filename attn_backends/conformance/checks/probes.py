"""The probe: the loaded kernel run on an undeclared request all the same, past the selector.

Right means that the backend declares too little; wrong or raising is what its refusal is for. One right case is not
enough: a feature that works at Sq < Sk alone, or for masks of one dtype, is none that a box could name. So a box has to be
right on the cases nearby too, those that it would admit if it declared the axis.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from attn_backends.box import Box, axis_values
from attn_backends.capability import TABLE
from attn_backends.conformance.canonical import canonical
from attn_backends.conformance.case import Case
from attn_backends.conformance.case_request import needs_backward, request_of
from attn_backends.conformance.checks import rigs
from attn_backends.conformance.checks.against_oracle import backward, forward
from attn_backends.conformance.checks.check import Check, Context, Finding
from attn_backends.conformance.checks.comparing import first_wrong
from attn_backends.conformance.flips import NOT_PROBED, small_enough
from attn_backends.conformance.standing import misses
from attn_backends.errors import AttnBackendsError

NEARBY: tuple[dict[str, Any], ...] = (
    {"seed": 1}, {"values": "large"}, {"values": "offset"}, {"seq_q": 129, "seq_k": 65}, {"seq_q": 9, "seq_k": 65},
    {"causal": True}, {"causal": True, "top_left": True}, {"q_heads": 8, "kv_heads": 1}, {"memory": "row_padded"},
)  # fmt: skip


def probe(context: Context, case: Case) -> Finding:
    """Run the kernel on what it does not declare, and on what lies nearby. Ok means right, hence declared too little."""
    first = alone(context, case)
    if not first.ok:
        return first
    seen: dict[Case, Finding] = {}
    found = [_nearby(context, case, box, missed, seen) for box, missed in _nearest(context, case)]
    return next((finding for finding in found if finding.ok), found[0])


def alone(context: Context, case: Case) -> Finding:
    """The kernel on one case: against the oracle, and in the exact rigs that fit."""
    past = dataclasses.replace(context, probing=True)
    try:
        findings = [(backward if needs_backward(case) else forward)(past, case)]
        findings += [rig.run(past, case) for rig in rigs.CHECKS if findings[0].ok and rig.applies(case)]
        return first_wrong(findings)
    except AttnBackendsError as error:
        return Finding(ok=False, message=f"{type(error).__name__}: {error}".splitlines()[0])
    except Exception as error:  # noqa: BLE001  # whatever a kernel says to what it never promised
        return Finding(ok=False, message=f"raises {type(error).__name__}: {error}".splitlines()[0])


def _nearby(
    context: Context, case: Case, box: Box, missed: frozenset[str], seen: dict[Case, Finding]
) -> Finding:  # fmt: skip
    """What becomes of the cases beside this one that miss the same axes of a box."""
    for other in _beside(case):
        if _missed(context, other, box) != missed or not small_enough(other):
            continue
        if other not in seen:
            seen[other] = alone(context, other)
        if not seen[other].ok:
            return Finding(ok=False, message=f"right here, but not for {other.id}: {seen[other].message}")
    return Finding(ok=True)


def _beside(case: Case) -> Iterator[Case]:
    for changes in NEARBY:
        other = canonical(case.replace(**changes))
        if other != case:
            yield other


def _nearest(context: Context, case: Case) -> list[tuple[Box, frozenset[str]]]:
    """The boxes that miss fewest axes, and which."""
    found = [(box, _missed(context, case, box)) for box in context.manifest.boxes]
    fewest = min(len(missed) for _, missed in found)
    return [(box, missed) for box, missed in found if len(missed) == fewest]


def _missed(context: Context, case: Case, box: Box) -> frozenset[str]:
    return frozenset(misses(box, axis_values(request_of(case), context.facts)))


CHECKS = (
    *(
        Check(name=f"probe-{row.axis}", kind="probe", run=probe, clauses=("DECLARE-2",), applies=small_enough, level="full")
        for row in TABLE
        if row.axis not in NOT_PROBED
    ),
    Check(name="probe-gap", kind="probe", run=alone, clauses=("DECLARE-3",), applies=small_enough),
)  # fmt: skip
