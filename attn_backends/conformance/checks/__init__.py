"""The checks of the suite, by name. Each proves clauses of the spec on one case against one backend."""

from __future__ import annotations

from attn_backends.conformance.checks import (
    against_oracle,
    evidence,
    insensitivity,
    probes,
    purity,
    refusals,
    reordering,
    repeating,
    rigs,
)
from attn_backends.conformance.checks.check import Check, Context, Finding, context_of

CHECKS: dict[str, Check] = {
    check.name: check
    for module in (against_oracle, rigs, insensitivity, reordering, purity, repeating, evidence, refusals, probes)
    for check in module.CHECKS
}

__all__ = ["CHECKS", "Check", "Context", "Finding", "context_of"]
