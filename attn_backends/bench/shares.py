"""`Told`: which shares of a device's peaks some measured times tell, and which they cannot.

Times fit a share where a little more or less of it moves a prediction. Where nothing waits for a unit, they say no more than
that its share is not below some value; where even half of it would change nothing, they say nothing. A share that would
have to be above 1 is none: those calls do less work than the model counts, or the device has more than is stated. And one
time is no fit of two shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attn_backends.selector.cost.fit import Observation, fitted, log_error

if TYPE_CHECKING:
    from attn_backends.registry.manifest import Manifest

LITTLE = 1.02
HALVINGS = 20  # of the interval in which the least share lies
SAME = 1e-9  # of the logarithm of a time
MOST = 0.9995  # what rounds to all of the peak


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """fits: share -> its value. least: share -> what it is not below. Names of the others, by what they are not.

    beyond: would be above 1. untold: anything would do. mingled: those that move times, where there are fewer times.
    """

    fits: Mapping[str, float]
    least: Mapping[str, float]
    beyond: tuple[str, ...]
    untold: tuple[str, ...]
    mingled: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "fitted": dict(self.fits), "at_least": dict(self.least), "beyond": list(self.beyond),
            "untold": list(self.untold), "mingled": list(self.mingled),
        }  # fmt: skip


def told(manifest: Manifest, observations: Sequence[Observation]) -> Told:
    """What the observations say of a backend's shares. Raises ValueError without observations."""
    trial = _Trial(manifest, observations, fitted(manifest, observations))
    fits: dict[str, float] = {}
    least: dict[str, float] = {}
    beyond, untold = [], []
    for name, share in trial.shares.items():
        if not trial.moves(name, share / 2):
            untold.append(name)
        elif not trial.moves(name, share / LITTLE):
            least[name] = round(trial.least(name), 3)
        elif share > MOST and trial.loss(name, share * LITTLE) < trial.loss(name, share):
            beyond.append(name)
        else:
            fits[name] = share
    moving = (*fits, *beyond)
    if len(observations) < len(moving):
        return Told(fits={}, least=least, beyond=(), untold=tuple(untold), mingled=moving)
    return Told(fits=fits, least=least, beyond=tuple(beyond), untold=tuple(untold))


@dataclass(frozen=True, slots=True)
class _Trial:
    """The best shares, of which one at a time is tried at another value."""

    manifest: Manifest
    observations: Sequence[Observation]
    shares: dict[str, float]

    def errors(self, name: str, share: float) -> list[float]:
        manifest = replace(self.manifest, efficiency={**self.shares, name: share})
        return [log_error(manifest, one) for one in self.observations]

    def loss(self, name: str, share: float) -> float:
        return sum(error**2 for error in self.errors(name, share))

    def moves(self, name: str, share: float) -> bool:
        """Whether any prediction is another one then."""
        as_it_is = self.errors(name, self.shares[name])
        return any(abs(one - other) > SAME for one, other in zip(as_it_is, self.errors(name, share), strict=True))

    def least(self, name: str) -> float:
        """The smallest share at which predictions are what they are."""
        low, high = self.shares[name] / 2, self.shares[name]
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.moves(name, middle) else (low, middle)
        return high
