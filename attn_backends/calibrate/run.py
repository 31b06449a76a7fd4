"""A calibration: points in order, within its minutes, every bucket stored whole when all its backends were tried.

First everything is compiled, by processes side by side; then the backends are timed, those that are predicted near the
best. Places where predictions are close come first.

What the file knows already, of these sources on this machine, is not timed again, so a second run goes on where the first
one ended; of two at once the later one's bucket stays, whole. Budgets go by the monotonic clock; the clock on the wall only dates the rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attn_backends.bench.results import CAPPED, OK, OUT_OF_MEMORY
from attn_backends.calibrate.ahead import compile_ahead
from attn_backends.calibrate.cells import sizes_of
from attn_backends.calibrate.crew import TIMEOUT, Crew
from attn_backends.calibrate.near import BEHIND, far_behind, lead
from attn_backends.calibrate.points import Point
from attn_backends.calibrate.rows import Keys, decision_of, fitting
from attn_backends.errors import AttnBackendsError
from attn_backends.registry.registry import Registry, default_registry
from attn_backends.selector.measured.database import Writer
from attn_backends.selector.measured.machine import Machine, device_key
from attn_backends.selector.measured.row import Row

if TYPE_CHECKING:
    from attn_backends.device import Device

MOST_SHARE = 0.4  # of the minutes, for one backend
LOSERS_SHARE = 0.04  # for one that was never near the best
AHEAD_SHARE = 0.35  # for compiling ahead, at most
NEAR = 1.3  # times the best
# Times the best prediction: who is predicted to take longer is not timed. Of 182 held-out shapes on one H200 the fastest
# was never predicted above 1.24, where there were more than two to choose from.
TIMED = 1.4
CLOSE = 1.15  # times the best prediction: a second one that a time may well put first
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
    processes: int = 0  # that compile ahead, side by side


@dataclass(slots=True, kw_only=True)
class Progress:
    """Who is told: `on_point(done, of)` after a bucket, `watch(text)` before every step."""

    on_point: Callable[[int, int], None] = lambda _done, _of: None
    watch: Callable[[str], None] = lambda _text: None


@dataclass(slots=True, kw_only=True)
class Ran:
    """What came of it, in buckets.

    known: in the file already. left: without times for want of minutes. no_choice: served by fewer than two backends, so
    that no time would change anything. spared: backend -> why it was not tried -> buckets.
    """

    timed: int = 0
    known: int = 0
    no_choice: int = 0
    left: int = 0
    seconds: float = 0.0
    ahead_s: float = 0.0  # of them, for compiling ahead
    statuses: dict[str, dict[str, int]] = field(default_factory=dict)  # backend -> status -> buckets
    spared: dict[str, dict[str, int]] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)  # backend -> why it was excluded

    def to_json(self) -> Json:
        """Plain values only."""
        return {
            "timed": self.timed, "known": self.known, "no_choice": self.no_choice, "left": self.left,
            "seconds": round(self.seconds, 1), "seconds_compiling_ahead": round(self.ahead_s, 1),
            "statuses": self.statuses, "not_tried": self.spared, "excluded": self.gone,
        }  # fmt: skip


def calibrate(plan: Plan, progress: Progress | None = None, registry: Registry | None = None) -> Ran:
    """Time what is missing. Raises DatabaseError where the file cannot be written."""
    return _Run(plan, progress or Progress(), registry or default_registry()).go()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Todo:
    """A point, who is to be timed on it, and who is not, because others are predicted to be so much faster."""

    point: Point
    names: tuple[str, ...]
    far: Mapping[str, float]
    predicted: Mapping[str, float | None]
    lead: float

    @property
    def order(self) -> int:
        """Where predictions are close first, then where they are nearly so."""
        return (self.lead > CLOSE) + (self.lead > TIMED)


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
            found = [todo for point in plan.points if (todo := self._todo(point, known, writer)) is not None]
            missing = sorted(found, key=lambda todo: todo.order)
            self._ran.known = len(plan.points) - len(missing) - self._ran.no_choice
            crew.start(dict.fromkeys(name for todo in missing for name in todo.names))
            self._compile(missing)
            for index, todo in enumerate(missing):
                rows = None if self._late() else self._bucket(crew, todo)
                if rows is None:
                    self._ran.left = len(missing) - index
                    break
                writer.put(rows)
                self._count(rows)
                self._progress.on_point(self._ran.timed, len(missing))
        self._ran.gone = {name: f"{status}: {why}" for name, (status, why) in crew.gone.items()}
        self._ran.seconds = time.monotonic() - self._started
        return self._ran

    def _known(self, writer: Writer) -> dict[tuple[Any, str], bool]:
        """(bucket, backend) that count as tried, by these very sources; False for one that was predicted far behind."""
        retried = RETRIED if self._plan.retry else ()
        rows = (row for row in writer.rows() if row.status not in retried)
        return {(row.bucket, row.backend): not row.why.endswith(BEHIND) for row in rows if self._keys.made(row)}

    def _todo(self, point: Point, known: Mapping[tuple[Any, str], bool], writer: Writer) -> _Todo | None:
        """The point and who is eligible, if somebody of them was never tried on it and is worth it.

        Of those who are not, it is stored that they are not.
        """
        decision = decision_of(point.cell, self._plan.facts, self._registry)
        names = fitting(decision, self._plan.backends)
        if len(names) < 2:
            self._ran.no_choice += 1
            return None
        candidates = [one for one in decision.candidates if one.name in names]
        far = far_behind(candidates, TIMED)
        todo = _Todo(
            point=point, names=tuple(name for name in names if name not in far), far=far, lead=lead(candidates),
            predicted={one.name: one.predicted_ms for one in candidates},
        )  # fmt: skip
        if not all(known.get((point.bucket, name), False) for name in todo.names):
            return todo
        if fresh := [name for name in far if (point.bucket, name) not in known]:
            writer.put(self._far_rows(todo, fresh))
        return None

    def _far_rows(self, todo: _Todo, names: Iterable[str]) -> list[Row]:
        whys = {name: f"predicted to take {todo.far[name]:.2f} {BEHIND}" for name in names}
        return [self._keys.row(todo.point, name, {"status": CAPPED, "why": why}) for name, why in whys.items()]

    def _compile(self, missing: Sequence[_Todo]) -> None:
        """Call everybody once on everything that is to be timed, side by side."""
        if not self._plan.processes or not missing:
            return
        started = time.monotonic()
        jobs = (
            (replace(size, passes=one), name)
            for todo in missing
            for size in sizes_of(todo.point.cell)
            for one in (("forward", "backward") if size.passes == "backward" else ("forward",))
            for name in todo.names
        )
        plan = self._plan
        compile_ahead(
            jobs, device=plan.device, seed=plan.seed, processes=plan.processes, setup=plan.setup, path=plan.setup_path,
            deadline=None if plan.minutes is None else self._started + AHEAD_SHARE * 60 * plan.minutes,
            watch=self._progress.watch,
        )  # fmt: skip
        self._ran.ahead_s = time.monotonic() - started

    def _bucket(self, crew: Crew, todo: _Todo) -> list[Row] | None:
        """The rows of a bucket; None where the minutes ended in the midst of it."""
        point = todo.point
        rows: list[Row] = []
        best: Json | None = None
        for name in todo.names:
            self._progress.watch(f"{point.cell.id}: {name}")
            answer = self._spared(crew, name, todo.predicted[name], None if best is None else best["ms"])
            if answer is None:
                left, spans = self._left(), None if best is None else best.get("spans")
                answer = crew.time(name, point.cell, point.bucket.kind, min(self._plan.timeout, left), best=spans)
                if answer["status"] == "timeout" and left < self._plan.timeout:
                    crew.gone.pop(name)
                    return None
            rows.append(self._keys.row(point, name, answer))
            if answer["status"] == OK and (best is None or answer["ms"] < best["ms"]):
                best = answer
        self._note(rows, best)
        for name in todo.far:
            self._leave_out(name, f"predicted to take more than {TIMED} {BEHIND}")
        return [*rows, *self._far_rows(todo, todo.far)]

    def _note(self, rows: Sequence[Row], best: Json | None) -> None:
        """How near the best everybody ever was."""
        for row in rows:
            if row.ms is not None and best is not None:
                self._nearest[row.backend] = min(row.ms / best["ms"], self._nearest.get(row.backend, float("inf")))

    def _leave_out(self, name: str, why: str) -> None:
        whys = self._ran.spared.setdefault(name, {})
        whys[why] = whys.get(why, 0) + 1

    def _spared(self, crew: Crew, name: str, predicted_ms: float | None, best: float | None) -> Json | None:
        """Why a backend is not tried at all; None where it is."""
        member = crew.member(name)
        if member is not None and member.compiles_for_every_shape:
            self._leave_out(name, "compiles for every shape")
            return {"status": CAPPED, "why": f"it compiles for every shape: {member.slow_starts} of {member.again}"}
        if member is not None and self._plan.minutes is not None:
            share, near = member.spent_s / (60 * self._plan.minutes), self._nearest.get(name, 1.0)
            if share > MOST_SHARE or (share > LOSERS_SHARE and near > NEAR):
                self._leave_out(name, "took too much time" if share > MOST_SHARE else "never near the best, and dear")
                return {
                    "status": CAPPED,
                    "why": f"it took {share:.0%} of the minutes, at best {near:.2f} times the best",
                }
        if best is not None and predicted_ms is not None and predicted_ms > HOPELESS * best:
            self._leave_out(name, f"predicted to take more than {HOPELESS:.0f} times the best time")
            return {"status": CAPPED, "why": f"predicted {predicted_ms:.3g} ms, and another took {best:.3g}"}
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
