"""Every mutant of the victim, by subject."""

from __future__ import annotations

from attn_backends.conformance.mutants.mutant import Mutant, mutants_of
from attn_backends.conformance.mutants.planted import (
    bookkeeping,
    caches,
    gradients,
    scores,
    softmax,
    tensors,
    visibility,
)

MODULES = (scores, visibility, softmax, tensors, caches, gradients, bookkeeping)


def all_mutants() -> tuple[Mutant, ...]:
    """Equivalent ones and those for other hardware included."""
    return tuple(mutant for module in MODULES for mutant in mutants_of(module))


def mutant(name: str) -> Mutant:
    """The mutant of this name. Raises KeyError."""
    return {one.name: one for one in all_mutants()}[name]
