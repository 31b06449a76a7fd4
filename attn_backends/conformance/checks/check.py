"""`Check`, `Finding`, `Context`: what every check is, what it says, and what it runs against.

A check is a name, the clauses that it can prove, the cases that it applies to, and a function. It says whether the
promise holds; which outcome that means is for the engine, by the check's kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import attn_backends
from attn_backends.conformance.case import Case
from attn_backends.conformance.outcome import Outcome
from attn_backends.device import Device
from attn_backends.registry.manifest import Manifest
from attn_backends.registry.registry import default_registry

KINDS = ("oracle", "exact", "property", "refusal", "probe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check saw. `ok`: the promise holds; `ratios`: measured error over what is allowed, by rule.

    outcome: set where the check itself knows the word; else it follows from `ok` and the kind of the check
    """

    ok: bool
    message: str = ""
    outcome: Outcome | None = None
    ratios: dict[str, float] = field(default_factory=dict)


RIGHT = Finding(ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The backend under test and where it runs; `facts` are the selector's view of `device`.

    probing: calls go past the selector, so that what the backend refuses runs all the same
    """

    manifest: Manifest
    device: torch.device
    facts: Device
    probing: bool = False

    @property
    def backend(self) -> str:
        """Its name."""
        return self.manifest.name

    def policy(self, **more: Any) -> Any:
        """A `Policy` that allows the backend's own numerics."""
        return attn_backends.Policy(numerics=frozenset({"exact", self.manifest.numerics}), **more)


def context_of(backend: str, device: torch.device | str = "cpu") -> Context:
    """The context of a registered backend. Raises UnknownBackendError."""
    place = torch.device(device)
    manifest = default_registry().snapshot().get(backend)
    return Context(manifest=manifest, device=place, facts=Device.of(place.type, place.index))


Applies = Callable[[Case], bool]
Run = Callable[[Context, Case], Finding]
ClausesOf = Callable[[Case], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One kind of proof.

    kind: oracle (numbers against the oracle), exact (rigs without tolerance), property (one call against another),
    refusal (undeclared, must be refused), probe (undeclared, run all the same)
    clauses: everything it can prove; `clauses_of(case)`: what it proves on one case
    level: the first level at which it runs; gpu: needs one
    """

    name: str
    kind: str
    clauses: tuple[str, ...]
    applies: Applies
    run: Run
    narrowed: ClausesOf | None = None
    level: str = "quick"
    gpu: bool = False

    def clauses_of(self, case: Case) -> tuple[str, ...]:
        """The clauses that this check proves on a case."""
        return self.clauses if self.narrowed is None else self.narrowed(case)
