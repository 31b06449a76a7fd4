"""`measure_online`: backends timed between the calls of a running program, within a share of its time.

After a call, where the device has nothing left to do, one backend is timed on one bucket that the program asked for and
that nobody measured. What that costs is kept below `share` of the time since the start: the next one waits until the
budget has grown by what the dearest one took. Never while a graph is captured, under `deterministic` or `batch_invariant`,
or while torch is asked for deterministic algorithms. In this process: a backend that takes the process down is for
`attn-backends calibrate`, which isolates it; those that it recorded as crashing are left out here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from attn_backends.bench.clock import Clock, clock_for
from attn_backends.calibrate.cells import NoCellError
from attn_backends.calibrate.points import Point, point_of
from attn_backends.calibrate.rows import Keys, decision_of, fitting
from attn_backends.calibrate.timing import time_backend
from attn_backends.errors import RequestError
from attn_backends.host.dispatch import device_of
from attn_backends.registry.hooking import add_hooks, remove_hooks
from attn_backends.registry.hooks import hookimpl
from attn_backends.registry.registry import default_registry
from attn_backends.selector.measured.bucket import Bucket
from attn_backends.selector.measured.database import READ_WAIT, Writer
from attn_backends.selector.measured.machine import Machine, device_key
from attn_backends.selector.measured.row import Row
from attn_backends.selector.measured.standing import database_path, stored_times
from attn_backends.selector.select import use_measurements

if TYPE_CHECKING:
    from attn_backends.host.ledger import Launch

DEADLY = ("crash", "timeout", "device_lost")
FIRST_GUESS_S = 0.05  # what a first timing is taken to cost, until one did


@dataclass(slots=True, eq=False)
class _Open:
    """A bucket that is being measured: who is left, and the rows so far."""

    point: Point
    left: list[str]
    rows: list[Row] = field(default_factory=list)


@contextmanager
def measure_online(
    *, share: float = 0.01, database: str | Path | None = None, device: str | None = None
) -> Iterator[Online]:
    """Measure while the calls inside go on; yields what was done so far, as `Online`.

    share: of the time since the start that measuring may cost, 0.01 = 1 %. database: the file; the machine's own without.
    A bucket counts once all its backends were tried, from the next call on. Raises RequestError for a share outside 0..1.
    """
    if not 0 < share < 1:
        raise RequestError("share", share, "between 0 and 1, such as 0.01")
    path = database_path() if database is None else Path(database)
    if path is None:
        raise RequestError("database", None, "a file", hint="ATTN_BACKENDS_MEASUREMENTS=0 says that none is used")
    from attn_backends.bench.target import target

    online = Online(share, path, target(device))
    name = add_hooks(online, "attn_backends_measure_online")
    try:
        yield online
    finally:
        remove_hooks(name)


class Online:
    """What watches the launches. `spent_s`: seconds that measuring took; `buckets`: how many are done."""

    def __init__(self, share: float, path: Path, device: torch.device) -> None:
        self.spent_s = 0.0
        self.buckets = 0
        self._share, self._path, self._device = share, path, device
        self._facts = device_of(device)
        self._chip = device_key(self._facts) or ""
        self._registry = default_registry()
        self._keys = Keys(self._registry, self._facts)
        self._started = time.monotonic()
        self._dearest_s = FIRST_GUESS_S
        self._busy = threading.Lock()
        self._clock: Clock | None = None
        self._open: dict[Bucket, _Open] = {}
        self._seen: set[Any] = set()  # decisions
        self._tried: set[tuple[Bucket, str]] = set()
        self._barred: dict[str, str] = {}  # backends that took a process down, and how
        self._read()

    @hookimpl
    def attn_backends_launched(self, launch: Launch) -> None:
        """A kernel ran: perhaps there is time now for another one."""
        if not self._busy.acquire(blocking=False):
            return  # a launch of the timing itself, or another thread's
        try:
            self._note(launch)
            if self._open and self._affordable() and self._allowed(launch):
                self._measure()
        finally:
            self._busy.release()

    def _read(self) -> None:
        """What the file knows of the present sources."""
        with Writer(self._path, self._chip, Machine.here(), wait=READ_WAIT) as writer:
            for row in writer.rows():
                if self._keys.made(row):
                    self._tried.add((row.bucket, row.backend))
                    if row.status in DEADLY:
                        self._barred[row.backend] = f"after a {row.status}: {row.why}"

    def _note(self, launch: Launch) -> None:
        """Put a new decision's bucket on the list, where somebody who fits was never tried on it."""
        decision = launch.decision
        if decision.id in self._seen or decision.device.kind != self._facts.kind:
            return
        self._seen.add(decision.id)
        try:
            point = point_of(decision.request)
        except NoCellError:
            return
        names = fitting(decision_of(point.cell, self._facts, self._registry))
        untried = [name for name in names if (point.bucket, name) not in self._tried]
        left = [name for name in untried if name not in self._barred]
        if len(names) > 1 and left:
            barred = [name for name in untried if name in self._barred]
            rows = [self._keys.row(point, one, {"status": "excluded", "why": self._barred[one]}) for one in barred]
            self._open.setdefault(point.bucket, _Open(point, left, rows))

    def _affordable(self) -> bool:
        return self.spent_s + self._dearest_s <= self._share * (time.monotonic() - self._started)

    def _allowed(self, launch: Launch) -> bool:
        """Whether nobody asked for results that repeat, nothing is being captured, and the device waits for work."""
        request = launch.decision.request
        if request.deterministic or request.batch_invariant or torch.are_deterministic_algorithms_enabled():
            return False
        if self._device.type != "cuda":
            return True
        return not torch.cuda.is_current_stream_capturing() and torch.cuda.current_stream(self._device).query()

    def _measure(self) -> None:
        """Time one backend on one bucket; store the bucket with the last one."""
        started = time.monotonic()
        bucket, one = next(iter(self._open.items()))
        name = one.left.pop(0)
        with torch.inference_mode(False), torch.enable_grad():
            if self._clock is None:
                self._clock = clock_for(self._device, self._facts)
            answer = time_backend(name, one.point.cell, clock=self._clock, seed=0, device=self._device, check=True)
        one.rows.append(self._keys.row(one.point, name, answer))
        if not one.left:
            del self._open[bucket]
            self._store(one)
        took = time.monotonic() - started
        self.spent_s += took
        self._dearest_s = max(took, self._dearest_s if self._dearest_s != FIRST_GUESS_S else 0.0)

    def _store(self, one: _Open) -> None:
        with Writer(self._path, self._chip, Machine.here(), wait=READ_WAIT) as writer:
            writer.put(one.rows)
        self._tried |= {(row.bucket, row.backend) for row in one.rows}
        self.buckets += 1
        use_measurements(stored_times(self._path))
