"""The cost model against measurements: how far its times are off, and how often it would have picked the fastest.

Reads results files; predictions are made anew with the manifests that are installed, for the device of the file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attn_backends.bench.results import Json, Results
from attn_backends.device import Device
from attn_backends.request import Request
from attn_backends.selector.cost.fit import Observation, fitted, log_error
from attn_backends.selector.cost.load import Subject, subject_of

if TYPE_CHECKING:
    from attn_backends.registry.manifest import Manifest
    from attn_backends.registry.registry import Snapshot

TIE = 0.02  # two backends that are this near are equally right as a pick


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendError:
    """One backend over all its cells. Factors: 1 is exact; `bias` above 1 means that predictions are too slow."""

    backend: str
    cells: int
    bias: float  # geometric mean of predicted / measured
    typical: float  # geometric mean of how far off, either way
    worst: float  # predicted / measured, where it is furthest off
    worst_cell: str
    efficiency: dict[str, float]  # as declared
    fitted: dict[str, float]  # as the measurements say

    def to_json(self) -> dict[str, Any]:
        """Plain values, four digits."""
        rounded = {name: round(getattr(self, name), 4) for name in ("bias", "typical", "worst")}
        return {
            "backend": self.backend, "cells": self.cells, **rounded, "worst_cell": self.worst_cell,
            "efficiency": self.efficiency, "fitted": self.fitted,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelError:
    """The model over whole files. `right` of `picks` cells with a choice had their fastest backend predicted first.

    `regret` is the geometric mean of the pick's time over the best time; 1 is perfect. `unknown`: measured backends that
    are not installed here, or declare no efficiency.
    """

    backends: tuple[BackendError, ...]
    picks: int
    right: int
    regret: float
    unknown: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        return {
            "backends": [one.to_json() for one in self.backends], "picks": self.picks, "right": self.right,
            "regret": round(self.regret, 4), "unknown": list(self.unknown),
        }  # fmt: skip


Seen = dict[str, dict[str, Observation]]  # cell -> backend -> what was measured


def model_error(files: Sequence[Results], snapshot: Snapshot) -> ModelError:
    """Judge the model on the timed cells of some files. Files without floors (overhead) say nothing."""
    seen: Seen = {}
    for results in files:
        _observe(results, seen)
    declared = {one.name: one for one in snapshot.manifests if one.efficiency}
    measured = list(dict.fromkeys(name for by_backend in seen.values() for name in by_backend))
    known = [declared[name] for name in measured if name in declared]
    ratios = [ratio for by_backend in seen.values() if (ratio := _pick(by_backend, declared)) is not None]
    return ModelError(
        backends=tuple(_backend_error(manifest, seen) for manifest in known),
        picks=len(ratios),
        right=sum(ratio <= 1 + TIE for ratio in ratios),
        regret=math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0,
        unknown=tuple(name for name in measured if name not in declared),
    )


def _observe(results: Results, seen: Seen) -> None:
    device = Device.from_json(results.head["device"])
    for cell, backend, outcome in results.timed():
        subject = _subject(cell, device)
        if subject is not None:
            name = f"{results.head['suite']}: {cell['id']}"
            observation = Observation(subject, outcome["device_ms"]["median"] / 1e3)
            seen.setdefault(name, {})[backend] = observation


def _subject(cell: Json, device: Device) -> Subject | None:
    if cell.get("floor") is None:
        return None
    sequences = tuple((count, new, keys) for count, new, keys in cell["sequences"])
    return subject_of(Request.from_json(cell["request"]), device, sequences=sequences, passes=cell["passes"])


def _pick(by_backend: dict[str, Observation], declared: dict[str, Manifest]) -> float | None:
    """Time of the model's pick over the best time; None without a choice."""
    known = {name: one for name, one in by_backend.items() if name in declared}
    if len(known) < 2:
        return None
    predicted = {name: one.seconds * math.exp(log_error(declared[name], one)) for name, one in known.items()}
    pick = min(predicted, key=lambda name: predicted[name])
    return known[pick].seconds / min(one.seconds for one in known.values())


def _backend_error(manifest: Manifest, seen: Seen) -> BackendError:
    own = {cell: by_backend[manifest.name] for cell, by_backend in seen.items() if manifest.name in by_backend}
    logs = {cell: log_error(manifest, one) for cell, one in own.items()}
    worst = max(logs, key=lambda cell: abs(logs[cell]))
    return BackendError(
        backend=manifest.name, cells=len(logs), bias=math.exp(sum(logs.values()) / len(logs)),
        typical=math.exp(sum(map(abs, logs.values())) / len(logs)), worst=math.exp(logs[worst]), worst_cell=worst,
        efficiency=manifest.efficiency, fitted=fitted(manifest, list(own.values())),
    )  # fmt: skip
