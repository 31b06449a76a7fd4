"""The shares of a device's peaks that explain measured times best: what a manifest's `efficiency` should say.

Minimises the mean squared logarithm of predicted over measured, one share after the other on a finer and finer grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from attn_backends.registry.manifest import SHARES
from attn_backends.selector.cost.predict import EXP, MATRIX, MEMORY, predict

if TYPE_CHECKING:
    from attn_backends.registry.manifest import Manifest
    from attn_backends.selector.cost.load import Subject

_STEPS = (2.0, 1.5, 1.2, 1.1, 1.05, 1.02, 1.01)
_LEAST = 0.001
_START = dict(zip(SHARES, (MATRIX, EXP, MEMORY, MATRIX, MEMORY), strict=True))


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured call: what was asked of which device, and the seconds it took."""

    subject: Subject
    seconds: float


def log_error(manifest: Manifest, observation: Observation) -> float:
    """ln(predicted / measured): 0 is exact, positive too slow. Raises ValueError for a backend without efficiency."""
    prediction = predict(manifest, observation.subject)
    if prediction is None:
        raise ValueError(f"{manifest.name} declares no efficiency: nothing is predicted for it")
    return math.log(prediction.seconds / observation.seconds)


def fitted(manifest: Manifest, observations: Sequence[Observation]) -> dict[str, float]:
    """The best shares; one that no observation depends on keeps what is declared, or is left out.

    Raises ValueError without observations.
    """
    if not observations:
        raise ValueError("nothing was measured: there is nothing to fit")

    def loss(shares: dict[str, float]) -> float:
        trial = replace(manifest, efficiency=shares)
        return sum(log_error(trial, one) ** 2 for one in observations)

    best = _descend(loss, {**_START, **manifest.efficiency})
    return {
        name: round(share, 3)
        for name, share in best.items()
        if _matters(loss, best, name) or name in manifest.efficiency
    }


def _descend(loss: Callable[[dict[str, float]], float], start: dict[str, float]) -> dict[str, float]:
    best, least = start, loss(start)
    for step in _STEPS:
        moved = True
        while moved:
            moved = False
            for name in start:
                for factor in (step, 1 / step):
                    trial = {**best, name: min(1.0, max(_LEAST, best[name] * factor))}
                    found = loss(trial)
                    if found < least * (1 - 1e-9):
                        best, least, moved = trial, found, True
    return best


def _matters(loss: Callable[[dict[str, float]], float], best: dict[str, float], name: str) -> bool:
    return loss({**best, name: best[name] / 2}) > loss(best) * (1 + 1e-6) + 1e-12
