"""The cost model against measurements: how far its times are off, and how often it would have picked the fastest.

Reads results files; predictions are made anew with the manifests that are installed, for the device of the file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attn_backends.bench.results import Json, Results
from attn_backends.bench.shares import Told, told
from attn_backends.device import Device
from attn_backends.request import Request
from attn_backends.selector.cost.fit import Observation, log_error
from attn_backends.selector.cost.load import Subject, subject_of

if TYPE_CHECKING:
    from attn_backends.registry.manifest import Manifest
    from attn_backends.registry.registry import Snapshot

TIE = 0.02  # two backends that are this near are equally right as a pick
UNITS = ("matrix", "exp", "memory")  # of a floor; what a launch takes is an estimate, and no limit


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
    told: Told  # what the measurements say of them

    def to_json(self) -> dict[str, Any]:
        """Plain values, four digits."""
        rounded = {name: round(getattr(self, name), 4) for name in ("bias", "typical", "worst")}
        return {
            "backend": self.backend, "cells": self.cells, **rounded, "worst_cell": self.worst_cell,
            "efficiency": self.efficiency, **self.told.to_json(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelError:
    """The model over whole files. `right` of `picks` cells with a choice had their fastest backend predicted first.

    `regret` is the geometric mean of the pick's time over the best time; 1 is perfect. `unknown`: measured backends that
    are not installed here, or declare no efficiency. `impossible`: exact results that were there sooner than the device's
    stated peaks allow; they are not judged.
    """

    backends: tuple[BackendError, ...]
    picks: int
    right: int
    regret: float
    unknown: tuple[str, ...]
    impossible: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        return {
            "backends": [one.to_json() for one in self.backends], "picks": self.picks, "right": self.right,
            "regret": round(self.regret, 4), "unknown": list(self.unknown), "impossible": list(self.impossible),
        }  # fmt: skip


Seen = dict[str, dict[str, Observation]]  # cell -> backend -> what was measured


def model_error(files: Sequence[Results], snapshot: Snapshot) -> ModelError:
    """Judge the model on the timed cells of some files. Files without floors (overhead) say nothing."""
    seen: Seen = {}
    impossible = [one for results in files for one in _observe(results, seen)]
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
        impossible=tuple(impossible),
    )


def _observe(results: Results, seen: Seen) -> list[str]:
    """Enter what was measured; returns what cannot have been."""
    device = Device.from_json(results.head["device"])
    impossible = []
    for cell, backend, outcome in results.timed():
        subject = _subject(cell, device)
        if subject is None:
            continue
        name = f"{results.head['suite']}: {cell['id']}"
        seconds = outcome["device_ms"]["median"] / 1e3
        if outcome["numerics"] == "exact" and seconds < max(cell["floor"][unit] for unit in UNITS):
            impossible.append(f"{backend} on {name}")
        else:
            seen.setdefault(name, {})[backend] = Observation(subject, seconds)
    return impossible


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
        efficiency=manifest.efficiency, told=told(manifest, list(own.values())),
    )  # fmt: skip
