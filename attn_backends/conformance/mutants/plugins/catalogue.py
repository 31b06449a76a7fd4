"""Every lie."""

from __future__ import annotations

from attn_backends.conformance.mutants.plugins import kernels, packages, states_and_writes
from attn_backends.conformance.mutants.plugins.lie import Lie


def all_lies() -> tuple[Lie, ...]:
    """Those of kernels, of packages and of states_and_writes."""
    return (*kernels.LIES, *packages.LIES, *states_and_writes.LIES)


def lie_named(name: str) -> Lie:
    """The lie of this name. Raises KeyError."""
    return {one.name: one for one in all_lies()}[name]
