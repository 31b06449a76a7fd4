"""What the selector's picks cost beside the best possible ones, over a results file of held-out shapes. No torch.

    regret of a shape = time of the pick / least time of any backend that was timed on it

by measured times (as `select` decides), by the cost model alone, by priorities alone. Picks are made anew, with today's
manifests and times; only the times of the backends are those of the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attn_backends.bench.model_error import TIE
from attn_backends.bench.peers import own_backends
from attn_backends.bench.results import CAPPED, OK, Json, Results
from attn_backends.calibrate.held_out import STEP
from attn_backends.calibrate.kept import kept
from attn_backends.calibrate.picks import COST_MODEL, GROUNDS, MEASURED, decisions
from attn_backends.device import Device
from attn_backends.registry.certificates import read_certificates
from attn_backends.registry.environment import Environment
from attn_backends.request import Request

if TYPE_CHECKING:
    from attn_backends.registry.registry import Registry
    from attn_backends.selector.times import Measurements


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One shape: milliseconds by backend, and by each of the grounds who is picked; `source` is what decided."""

    id: str
    group: str
    times: Mapping[str, float]
    capped: Mapping[str, str]
    picks: Mapping[str, str | None]
    source: str | None

    @property
    def best(self) -> str:
        """The fastest backend."""
        return min(self.times, key=lambda name: self.times[name])

    def regret(self, grounds: str) -> float | None:
        """None where the pick was not timed."""
        took = self.times.get(self.picks[grounds] or "")
        return None if took is None else took / self.times[self.best]

    def against_peers(self, own: Iterable[str]) -> float | None:
        """Time of the measured pick over the fastest peer's; None where no peer, or not the pick, was timed."""
        peers = [ms for name, ms in self.times.items() if name not in own]
        took = self.times.get(self.picks[MEASURED] or "")
        return None if took is None or not peers else took / min(peers)

    def to_json(self) -> Json:
        """Plain values, five digits."""
        regrets = {name: self.regret(name) for name in GROUNDS}
        return {
            "id": self.id, "group": self.group, "best": self.best, "source": self.source,
            "ms": {name: float(f"{ms:.5g}") for name, ms in self.times.items()}, "picks": dict(self.picks),
            "regret": {name: None if value is None else round(value, 4) for name, value in regrets.items()},
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Regret over shapes: the geometric mean, the worst and where; `right`: picks within 2 % of the best."""

    shapes: int
    mean: float
    worst: float
    worst_shape: str
    right: int

    def to_json(self) -> Json:
        """Plain values, four digits."""
        return {
            "shapes": self.shapes, "geometric_mean": round(self.mean, 4), "worst": round(self.worst, 4),
            "worst_shape": self.worst_shape, "right": self.right,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Over all shapes with a choice, and group by group.

    alone: shapes that one backend serves alone; unserved: those that the reference serves, or nobody: not counted.
    """

    shapes: tuple[Shape, ...]
    alone: int
    unserved: int
    capped: Mapping[str, Mapping[str, int]]  # backend -> why -> shapes
    own: tuple[str, ...]
    head: Json = field(default_factory=dict)
    calibrated: Json | None = None  # the measured times that picks were made by, as `kept`

    def summary(self, grounds: str, group: str | None = None) -> Summary | None:
        """None where no pick was timed."""
        of = [one for one in self.shapes if group in (None, one.group)]
        found = {one.id: value for one in of if (value := one.regret(grounds)) is not None}
        if not found:
            return None
        worst = max(found, key=lambda name: found[name])
        return Summary(
            shapes=len(found), mean=_geometric_mean(found.values()), worst=found[worst], worst_shape=worst,
            right=sum(value <= 1 + TIE for value in found.values()),
        )  # fmt: skip

    @property
    def groups(self) -> list[str]:
        """In the order of the file."""
        return list(dict.fromkeys(one.group for one in self.shapes))

    @property
    def untimed(self) -> dict[str, int]:
        """Picks that have no time, by grounds."""
        return {name: sum(one.regret(name) is None for one in self.shapes) for name in GROUNDS}

    @property
    def measured(self) -> int:
        """Shapes whose pick was made by a measured time."""
        return sum(one.source == MEASURED for one in self.shapes)

    def peers(self, slack: float) -> tuple[int, int]:
        """(shapes where the pick is at least as fast as the best peer, within `slack`; shapes with a peer)."""
        ratios = [ratio for one in self.shapes if (ratio := one.against_peers(self.own)) is not None]
        return sum(ratio <= 1 + slack for ratio in ratios), len(ratios)

    def to_json(self) -> Json:
        """Everything, shape by shape too."""
        return {
            "schema": "attn.regret/1", "head": self.head, "shapes_with_a_choice": len(self.shapes), "alone": self.alone,
            "unserved": self.unserved,
            "decided_by_measured_time": self.measured, "untimed_picks": self.untimed,
            "regret": {name: _plain(self.summary(name)) for name in GROUNDS},
            "groups": {
                group: {name: _plain(self.summary(name, group)) for name in GROUNDS} for group in self.groups
            },
            "cost_model_right": _share(self.summary(COST_MODEL)),
            "at_least_as_fast_as_the_best_peer": {
                "within_2_percent": list(self.peers(TIE)), "exactly": list(self.peers(0.0)), "own": list(self.own),
            },
            "capped": {name: dict(whys) for name, whys in self.capped.items()},
            "shapes": [one.to_json() for one in self.shapes], "calibrated": self.calibrated,
        }  # fmt: skip


def report(results: Results, registry: Registry, times: Measurements) -> Report:
    """Judge the picks of today on the times of a file."""
    device = Device.from_json(results.head["device"])
    environment = _environment(results, device)
    made = (_shape(record, results, device, environment, registry, times) for record in results.cells.values())
    found = [one for one in made if one is not None]
    timed = [one for one in found if one.times]
    choice = tuple(one for one in timed if len({*one.times, *one.capped}) > 1)
    capped: dict[str, dict[str, int]] = {}
    for one in choice:
        for name, why in one.capped.items():
            whys = capped.setdefault(name, {})
            whys[why] = whys.get(why, 0) + 1
    head = {name: results.head[name] for name in ("device_name", "versions", "seed", "size", "commands", "method")}
    return Report(
        shapes=choice, alone=len(timed) - len(choice), unserved=len(found) - len(timed), capped=capped,
        own=own_backends(), head=head, calibrated=kept(times, device, registry),
    )  # fmt: skip


def _environment(results: Results, device: Device) -> Environment | None:
    """What was installed where the shapes were timed, so that a file is judged alike wherever it is read."""
    if device.pretended:
        return None
    versions: Mapping[str, str] = results.head["versions"]
    return Environment(versions=tuple(sorted(versions.items())), certificates=read_certificates())


def _shape(
    record: Json,
    results: Results,
    device: Device,
    environment: Environment | None,
    registry: Registry,
    times: Measurements,
) -> Shape | None:
    """None for the forward of a training step, which is part of its step's shape."""
    if record["id"].endswith(STEP):
        return None
    parts = [record, *([results.cells.get(record["id"] + STEP)] if record["passes"] == "backward" else [])]
    whole = [part for part in parts if part is not None]
    if len(whole) < len(parts):
        return None
    request = Request.from_json(record["request"])
    made = decisions(request, device, registry, times, environment)
    spared = [name for part in whole for name, one in part["results"].items() if one["status"] == CAPPED]
    fitting = {one.name for one in made[MEASURED].candidates if one.status != "rejected"}
    return Shape(
        id=record["id"], group=record["panel"], times=_times(whole),
        capped={name: _why(whole, name) for name in spared if name in fitting},
        picks={name: decision.backend for name, decision in made.items()}, source=made[MEASURED].source,
    )  # fmt: skip


def _times(parts: Sequence[Json]) -> dict[str, float]:
    """Milliseconds of the backends that were timed on every part, added."""
    names = [name for name, one in parts[0]["results"].items() if one["status"] == OK]
    return {
        name: sum(part["results"][name]["device_ms"]["median"] for part in parts)
        for name in names
        if all(part["results"].get(name, {}).get("status") == OK for part in parts)
    }


def _why(parts: Sequence[Json], name: str) -> str:
    return next(str(part["results"][name]["why"]) for part in parts if part["results"][name]["status"] == CAPPED)


def _geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def _plain(summary: Summary | None) -> Any:
    return None if summary is None else summary.to_json()


def _share(summary: Summary | None) -> list[int] | None:
    return None if summary is None else [summary.right, summary.shapes]
