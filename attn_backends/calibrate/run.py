"""A calibration: points in order, within its minutes, every bucket stored whole when all its backends were tried.

What the file knows already, of these sources on this machine, is not timed again, so a second run goes on where the first
one ended, and two at once share the work. Budgets go by the monotonic clock; the clock on the wall only dates the rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attn_backends.bench.results import OK, OUT_OF_MEMORY
from attn_backends.calibrate.crew import TIMEOUT, Crew
from attn_backends.calibrate.points import Point
from attn_backends.calibrate.rows import Keys, decision_of, fitting
from attn_backends.errors import AttnBackendsError
from attn_backends.registry.registry import Registry, default_registry
from attn_backends.selector.measured.database import Writer
from attn_backends.selector.measured.machine import Machine, device_key
from attn_backends.selector.measured.row import Row

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.selector.decision import Decision

MOST_SHARE = 0.4  # of the minutes, for one backend
LOSERS_SHARE = 0.1  # for one that was never near the best
NEAR = 1.3  # times the best
HOPELESS = 4.0  # times the best measured: one that is predicted to take so long is not tried
RETRIED = ("crash", "timeout", "excluded", "capped", "device_lost", "error", OUT_OF_MEMORY)  # by `retry`

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to time: `device` as torch calls it, `minutes` None = to the end; `retry` what failed or was capped before."""

    points: tuple[Point, ...]
    path: Path
    device: str
    facts: Device
    minutes: float | None = None
    backends: tuple[str, ...] | None = None
    seed: int = 0
    retry: bool = False
    fresh: bool = False
    setup: str | None = None
    setup_path: tuple[str, ...] = ()
    timeout: float = TIMEOUT


@dataclass(slots=True, kw_only=True)
class Progress:
    """Who is told: `on_point(done, of)` after a bucket, `watch(text)` before every step."""

    on_point: Callable[[int, int], None] = lambda _done, _of: None
    watch: Callable[[str], None] = lambda _text: None


@dataclass(slots=True, kw_only=True)
class Ran:
    """What came of it, in buckets.

    known: in the file already. left: without times for want of minutes. no_choice: served by fewer than two backends, so
    that no time would change anything.
    """

    timed: int = 0
    known: int = 0
    no_choice: int = 0
    left: int = 0
    seconds: float = 0.0
    statuses: dict[str, dict[str, int]] = field(default_factory=dict)  # backend -> status -> buckets
    gone: dict[str, str] = field(default_factory=dict)  # backend -> why it was excluded

    def to_json(self) -> Json:
        """Plain values only."""
        return {
            "timed": self.timed, "known": self.known, "no_choice": self.no_choice, "left": self.left,
            "seconds": round(self.seconds, 1),
            "statuses": self.statuses, "excluded": self.gone,
        }  # fmt: skip


def calibrate(plan: Plan, progress: Progress | None = None, registry: Registry | None = None) -> Ran:
    """Time what is missing. Raises DatabaseError where the file cannot be written."""
    return _Run(plan, progress or Progress(), registry or default_registry()).go()


class _Run:
    """One calibration."""

    def __init__(self, plan: Plan, progress: Progress, registry: Registry) -> None:
        chip = device_key(plan.facts)
        if chip is None:
            raise AttnBackendsError(
                f"{plan.facts.describe()} is pretended; times are measured on a device that is here"
            )
        self._plan, self._progress, self._registry = plan, progress, registry
        self._chip = chip
        self._started = time.monotonic()
        self._ran = Ran()
        self._nearest: dict[str, float] = {}  # backend -> its least time over the best of the bucket
        self._keys = Keys(registry, plan.facts)

    def go(self) -> Ran:
        """All points, or as many as the minutes allow."""
        plan = self._plan
        crew = Crew(plan.device, seed=plan.seed, setup=plan.setup, path=plan.setup_path)
        with Writer(plan.path, self._chip, Machine.here()) as writer, crew:
            if plan.fresh:
                writer.forget()
            known = self._known(writer)
            missing = [todo for point in plan.points if (todo := self._todo(point, known)) is not None]
            self._ran.known = len(plan.points) - len(missing) - self._ran.no_choice
            crew.start(dict.fromkeys(name for _, decision in missing for name in self._names(decision)))
            for index, (point, decision) in enumerate(missing):
                rows = None if self._late() else self._bucket(crew, point, decision)
                if rows is None:
                    self._ran.left = len(missing) - index
                    break
                writer.put(rows)
                self._count(rows)
                self._progress.on_point(self._ran.timed, len(missing))
        self._ran.gone = {name: f"{status}: {why}" for name, (status, why) in crew.gone.items()}
        self._ran.seconds = time.monotonic() - self._started
        return self._ran

    def _known(self, writer: Writer) -> set[tuple[Any, str]]:
        """(bucket, backend) that count as tried, by these very sources."""
        retried = RETRIED if self._plan.retry else ()
        rows = (row for row in writer.rows() if row.status not in retried)
        return {(row.bucket, row.backend) for row in rows if self._keys.made(row)}

    def _todo(self, point: Point, known: set[tuple[Any, str]]) -> tuple[Point, Decision] | None:
        """The point and who is eligible, if somebody of them was never tried on it."""
        decision = decision_of(point.cell, self._plan.facts, self._registry)
        names = self._names(decision)
        if len(names) < 2:
            self._ran.no_choice += 1
            return None
        return None if all((point.bucket, name) in known for name in names) else (point, decision)

    def _names(self, decision: Decision) -> list[str]:
        return fitting(decision, self._plan.backends)

    def _bucket(self, crew: Crew, point: Point, decision: Decision) -> list[Row] | None:
        """The rows of a bucket; None where the minutes ended in the midst of it."""
        predicted = {one.name: one.predicted_ms for one in decision.candidates}
        rows: list[Row] = []
        best: float | None = None
        for name in self._names(decision):
            self._progress.watch(f"{point.cell.id}: {name}")
            answer = self._spared(crew, name, predicted[name], best)
            if answer is None:
                left = self._left()
                answer = crew.time(name, point.cell, point.bucket.kind, min(self._plan.timeout, left))
                if answer["status"] == "timeout" and left < self._plan.timeout:
                    crew.gone.pop(name)
                    return None
            rows.append(self._keys.row(point, name, answer))
            if answer["status"] == OK:
                best = answer["ms"] if best is None else min(best, answer["ms"])
        for row in rows:
            if row.ms is not None and best is not None:
                self._nearest[row.backend] = min(row.ms / best, self._nearest.get(row.backend, float("inf")))
        return rows

    def _spared(self, crew: Crew, name: str, predicted_ms: float | None, best: float | None) -> Json | None:
        """Why a backend is not tried at all; None where it is."""
        member = crew.member(name)
        if member is not None and member.compiles_for_every_shape:
            return {"status": "capped", "why": f"it compiles for every shape: {member.slow_starts} of {member.again}"}
        if member is not None and self._plan.minutes is not None:
            share, near = member.spent_s / (60 * self._plan.minutes), self._nearest.get(name, 1.0)
            if share > MOST_SHARE or (share > LOSERS_SHARE and near > NEAR):
                return {
                    "status": "capped",
                    "why": f"it took {share:.0%} of the minutes, at best {near:.2f} times the best",
                }
        if best is not None and predicted_ms is not None and predicted_ms > HOPELESS * best:
            return {"status": "capped", "why": f"predicted {predicted_ms:.3g} ms, and another took {best:.3g}"}
        return None

    def _count(self, rows: Sequence[Row]) -> None:
        self._ran.timed += 1
        for row in rows:
            statuses = self._ran.statuses.setdefault(row.backend, {})
            statuses[row.status] = statuses.get(row.status, 0) + 1

    def _left(self) -> float:
        """Seconds of the minutes that are left."""
        minutes = self._plan.minutes
        return float("inf") if minutes is None else 60 * minutes - (time.monotonic() - self._started)

    def _late(self) -> bool:
        return self._left() <= 0
