"""`behind_the_filters`: what keeps a backend from a request besides the filter that spoke first. For `why-not`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attn_backends.selector.decision import Candidate, Decision

BEHIND = ("capability", "check")  # stages that a filter before them keeps from being asked


def behind_the_filters(decision: Decision, candidate: Candidate) -> Candidate | None:
    """How a backend stands that the policy, a knob, a package or a certificate is against, once none of them is.

    None where its boxes and its check hold the request, where they spoke first, and where it cannot be asked.
    """
    from attn_backends.registry.environment import Environment
    from attn_backends.registry.knobs import NO_KNOBS
    from attn_backends.registry.manifest import NUMERICS
    from attn_backends.registry.registry import default_registry
    from attn_backends.selector.resolve import resolve
    from attn_backends.selector.select import question_of
    from attn_backends.selector.times import NO_TIMES

    if candidate.status != "rejected" or candidate.stage in BEHIND:
        return None
    policy, name = decision.policy, candidate.name
    lifted = dataclasses.replace(
        policy, only=None, block=policy.block - {name}, numerics=frozenset(NUMERICS), allow_quarantined=True,
        forbid_reference=False, trust=policy.trust | {name},
    )  # fmt: skip
    registry = default_registry()
    question, _ = question_of(
        decision.request, None, lifted, decision.device, Environment.pretend(), (), NO_KNOBS, registry.snapshot(), registry,
        NO_TIMES,
    )  # fmt: skip
    own = resolve(question).candidate(name)
    return own if own.status == "rejected" and own.stage in BEHIND else None
