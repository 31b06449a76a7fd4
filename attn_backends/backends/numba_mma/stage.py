"""`stage`: a step of the algorithm, written once and run on two machines: one that writes PTX, and the one of the tests.

A stage is a function `(machine, config, *operands) -> results`. Several registers of a thread are a list of values here, and a
tuple in numba's eyes (intrinsic.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attn_backends.backends.numba_mma.config import Config

# Kind of the results, "real", "integer" or "long", and how many: 0 = a single number, None = nothing.
Results = tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class Stage:
    """A function together with what it gives."""

    function: Callable[..., Any]
    results: Callable[[Config], Results]

    @property
    def operands(self) -> list[str]:
        """Their names, without machine and config."""
        return list(inspect.signature(self.function).parameters)[2:]


def stage(results: Callable[[Config], Results] | Results = None) -> Callable[[Callable[..., Any]], Stage]:
    """Makes a function a stage."""
    return lambda function: Stage(function, results if callable(results) else lambda _config: results)
