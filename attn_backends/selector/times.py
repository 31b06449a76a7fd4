"""Times that ranking may use: measured on this device, or predicted by a cost model. Interfaces and neutral instances.

The neutral store knows no measurement (it is the default), the neutral model predicts nothing (the default one is
`selector.cost.model.ROOFLINE`); where neither says anything, the declared priority decides. Both must answer
from the canonical request alone, which stands for its bucket, so that equal cache keys rank equally.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.registry.environment import Environment
    from attn_backends.registry.manifest import Manifest
    from attn_backends.request import Request


class Measured(NamedTuple):
    """A measured time; `at` is when (UTC, ISO; empty where nobody knows), `by` what it was measured of.

    `bucket`: calls of this size. `neighbours`: smaller and larger ones, between which it lies.
    """

    ms: float
    at: str = ""
    by: str = "bucket"


class Measurements(Protocol):
    """Where measured times come from. `token` changes whenever an answer could.

    A store that looks at the backends (whether their sources are still those that were measured) offers
    `measured(manifests, request, device, environment)` as well, which returns `Measured` by name; it is then asked
    instead of `times`.
    """

    @property
    def token(self) -> Hashable:
        """Identity of the contents, part of the cache key."""
        ...

    def times(self, request: Request, device: Device) -> Mapping[str, float]:
        """Milliseconds by backend name, for the backends that were measured on this device for this request."""
        ...


class CostModel(Protocol):
    """Predicts times from declared efficiency. `token` changes whenever an answer could.

    A model that looks at all candidates together offers `predict_together(manifests, request, device)` as well, which
    returns milliseconds by name; it is then asked instead of `predict`.
    """

    @property
    def token(self) -> Hashable:
        """Identity of the model, part of the cache key."""
        ...

    def predict(self, manifest: Manifest, request: Request, device: Device) -> float | None:
        """Milliseconds, or None where it cannot tell."""
        ...


def measured_times(
    store: Measurements, manifests: Sequence[Manifest], request: Request, device: Device, environment: Environment
) -> Mapping[str, Measured]:
    """What was measured of these backends, by name."""
    detailed = getattr(store, "measured", None)
    if detailed is not None:
        found: Mapping[str, Measured] = detailed(manifests, request, device, environment)
        return found
    times = store.times(request, device)
    return {one.name: Measured(times[one.name]) for one in manifests if one.name in times}


def predicted_times(
    model: CostModel, manifests: Sequence[Manifest], request: Request, device: Device
) -> Mapping[str, float]:
    """What a model predicts for these backends, in milliseconds by name."""
    together = getattr(model, "predict_together", None)
    if together is not None:
        times: Mapping[str, float] = together(manifests, request, device)
        return times
    each = {manifest.name: model.predict(manifest, request, device) for manifest in manifests}
    return {name: time for name, time in each.items() if time is not None}


@dataclass(frozen=True, slots=True)
class FixedTimes:
    """Measurements given as a mapping; the neutral default is the empty one."""

    by_backend: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, times: Mapping[str, float]) -> FixedTimes:
        """From a dict of milliseconds; times that are not finite and positive are left out."""
        kept = {name: float(ms) for name, ms in times.items() if 0 < float(ms) < float("inf")}
        return cls(tuple(sorted(kept.items())))

    @property
    def token(self) -> Hashable:
        """The times themselves."""
        return self.by_backend

    def times(self, request: Request, device: Device) -> Mapping[str, float]:
        """The same times for every request."""
        return dict(self.by_backend)


@dataclass(frozen=True, slots=True)
class NoCostModel:
    """The neutral model: it never predicts."""

    token: Hashable = None

    def predict(self, manifest: Manifest, request: Request, device: Device) -> float | None:
        """Nothing."""
        return None


NO_TIMES = FixedTimes()
NO_COST_MODEL = NoCostModel()
