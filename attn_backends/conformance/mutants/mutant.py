"""`Mutant`: one planted bug, one function in place of one seam of the victim; `plant` makes one of a function.

    @plant("SCALE-1", "scale")
    def scale_of_padded_width(call): ...

The function's name is the mutant's, its docstring says what the careless author did.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from attn_backends.conformance.mutants.host import Victim, declared
from attn_backends.conformance.mutants.seams import Seam, Seams


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One bug.

    clause: the one that it breaks; seam: what it replaces; needs: axes that a call must use for the bug to show
    changes: what its boxes declare otherwise than the victim's; note: one sentence
    beside: other choices that are right, without which the bug does not show; numerics: what the mutant declares
    proof: why no call can tell it from the victim, for one that is provably equivalent; else empty
    hardware: what its clause needs that not every machine has ("cuda"), or None
    """

    name: str
    clause: str
    seam: str
    function: Seam
    needs: tuple[str, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)
    beside: dict[str, Seam] = field(default_factory=dict)
    numerics: str = "exact"
    note: str = ""
    proof: str = ""
    hardware: str | None = None

    @property
    def equivalent(self) -> bool:
        """Whether it is a bug at all."""
        return bool(self.proof)

    @property
    def backend(self) -> str:
        """The name that it is registered under."""
        return f"mutant_{self.name}"

    def victim(self) -> Victim:
        """The host with this bug."""
        return Victim(dataclasses.replace(Seams(), **{**self.beside, self.seam: self.function}))

    def manifest(self) -> dict[str, Any]:
        """What it declares."""
        found = declared(self.backend)
        return {
            **found,
            "numerics": self.numerics,
            "capability": [{**box, **self.changes} for box in found["capability"]],
        }


def plant(
    clause: str,
    seam: str,
    *,
    needs: tuple[str, ...] = (),
    proof: str = "",
    hardware: str | None = None,
    beside: dict[str, Seam] | None = None,
    numerics: str = "exact",
    **changes: Any,
) -> Callable[[Seam], Mutant]:
    """A mutant of the decorated function."""

    def made(function: Seam) -> Mutant:
        return Mutant(
            name=function.__name__, clause=clause, seam=seam, function=function, needs=needs, changes=changes,
            note=(function.__doc__ or "").strip(), proof=proof, hardware=hardware, beside=beside or {}, numerics=numerics,
        )  # fmt: skip

    return made


def mutants_of(module: ModuleType) -> tuple[Mutant, ...]:
    """The mutants of a module, in its order."""
    return tuple(value for value in vars(module).values() if isinstance(value, Mutant))
