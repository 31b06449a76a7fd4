"""What the ledger must show of a call: the backend and no other, and of conversions only declared ones, with their bytes."""

from __future__ import annotations

import attn_backends
from attn_backends.conformance.case import Case
from attn_backends.conformance.case_request import request_of
from attn_backends.conformance.checks.calling import attend
from attn_backends.conformance.checks.check import Check, Context, Finding
from attn_backends.conformance.inputs import make_inputs


def _of_others(context: Context) -> dict[str, int]:
    """Launches of every other backend, by decision and name."""
    found = attn_backends.launches().items()
    return {f"{key} {one.backend}": one.launches for key, one in found if one.backend != context.backend}


def evidence(context: Context, case: Case) -> Finding:
    """The decision's own record counts the launch and names what was converted."""
    inputs = make_inputs(case, context.device)
    decision = attn_backends.select(
        request_of(case), backend=context.backend, policy=context.policy(), device=context.facts
    )
    before = attn_backends.launches().get(decision.id)
    others = _of_others(context)
    attend(context, inputs)
    after = attn_backends.launches().get(decision.id)
    if after is None or after.backend != context.backend or after.launches <= (before.launches if before else 0):
        return Finding(ok=False, message=f"decision {decision.id} counts no launch of {context.backend!r}")
    helpers = [name for name, launches in _of_others(context).items() if launches > others.get(name, 0)]
    if helpers:
        return Finding(ok=False, message=f"the call launched other backends too: {', '.join(helpers)}")
    undeclared = sorted(set(after.conversions) - set(context.manifest.converts))
    if undeclared:
        return Finding(ok=False, message=f"converted {', '.join(undeclared)}, which the manifest does not declare")
    named = decision.chosen.conversions if decision.chosen else ()
    unknown = sorted(set(named) - set(context.manifest.converts))
    return Finding(ok=not unknown, message=f"the decision names {', '.join(unknown)}" if unknown else "")


CHECKS = (
    Check(
        name="evidence", kind="property", run=evidence, clauses=("EVIDENCE-1", "EVIDENCE-2"),
        applies=lambda case: case.seq_q > 0,
    ),
)  # fmt: skip
