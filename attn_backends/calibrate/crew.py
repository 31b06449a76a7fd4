"""`Crew`: one process per backend, asked for one cell at a time. One that dies, hangs or loses its device is let go.

All are started at once, so that their imports overlap; only one measures at a time. No torch here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from attn_backends.bench.cell import Cell
from attn_backends.bench.results import LOST, OK
from attn_backends.calibrate.cells import cell_to_json
from attn_backends.conformance.child import Child
from attn_backends.conformance.outcome import Outcome

START_TIMEOUT = 120.0  # seconds until a process is ready
SLOW_START_S = 1.0  # until a backend is ready for a cell: it compiled
MOST_SLOW_STARTS = 6
TIMEOUT = 90.0  # seconds for one cell, compilation included

Json = dict[str, Any]
Spans = list[list[float]]  # quartiles of every pass at every size, in the order in which they are timed


@dataclass(slots=True, eq=False)
class Member:
    """A backend's process, what it was found right on, and how its time went."""

    child: Child
    ready: bool = False
    checked: set[str] = field(default_factory=set)  # kinds of calls
    spent_s: float = 0.0
    again: int = 0  # cells of a kind that it knew
    slow_starts: int = 0  # those of them before which it compiled all the same

    @property
    def compiles_for_every_shape(self) -> bool:
        """Whether it did so for most of those that it knew, and often enough to say so."""
        return self.slow_starts >= MOST_SLOW_STARTS and 2 * self.slow_starts > self.again


class Crew:
    """The processes of a run. `setup`: "module:function" that registers backends in each. `with` ends them all."""

    def __init__(self, device: str, *, seed: int, setup: str | None = None, path: Iterable[str] = ()) -> None:
        self._job = {"device": device, "seed": seed, "setup": setup}
        self._path = tuple(path)
        self._members: dict[str, Member] = {}
        self.gone: dict[str, tuple[str, str]] = {}  # backend -> (status, why) of one that was let go

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._members.values():
            member.child.kill()

    def start(self, names: Iterable[str]) -> None:
        """Bring up those that are not there yet, without waiting for them."""
        for name in names:
            if name not in self._members and name not in self.gone:
                child = Child("attn_backends.calibrate.worker", self._path)
                child.tell({"backend": name, **self._job})
                self._members[name] = Member(child)

    def member(self, name: str) -> Member | None:
        """A backend's standing; None for one that was let go, or never started."""
        return self._members.get(name)

    def time(
        self, name: str, cell: Cell, kind: str, timeout: float = TIMEOUT, *, best: Spans | None = None
    ) -> Json:  # fmt: skip
        """What a backend took on a cell: the answer of `timing.time_backend`, or crash, timeout or excluded with why.

        best: the spans of the fastest one there so far; one that is clear of them is not sampled any longer
        """
        if name in self.gone:
            return {"status": "excluded", "why": f"after a {self.gone[name][0]}: {self.gone[name][1]}"}
        self.start([name])
        member = self._members[name]
        if not member.ready and (why := self._not_ready(name, member)) is not None:
            return self._let_go(name, "crash", why)
        started = time.monotonic()
        asked = {"id": cell.id, "cell": cell_to_json(cell), "check": kind not in member.checked, "best": best}
        member.child.tell(asked)
        answer = member.child.receive(timeout, lambda said: said.get("id") == cell.id and "status" in said)
        member.spent_s += time.monotonic() - started
        if not isinstance(answer, dict):
            hung = answer is Outcome.TIMEOUT
            why = f"no answer within {timeout:.0f} s" if hung else f"{member.child.epitaph()} on {cell.id}"
            return self._let_go(name, "timeout" if hung else "crash", why)
        if answer["status"] == LOST:
            return self._let_go(name, LOST, answer["why"])
        if answer["status"] == OK:
            known = kind in member.checked
            member.again += known
            member.slow_starts += known and answer["first_s"] > SLOW_START_S
            member.checked.add(kind)
        return answer

    def _not_ready(self, name: str, member: Member) -> str | None:
        said = member.child.receive(START_TIMEOUT, lambda message: "ready" in message or "failed" in message)
        member.ready = isinstance(said, dict) and bool(said.get("ready"))
        if member.ready:
            return None
        return str(said["failed"]) if isinstance(said, dict) else f"{name}: {member.child.epitaph()}"

    def _let_go(self, name: str, status: str, why: str) -> Json:
        self._members.pop(name).child.kill()
        self.gone[name] = (status, why)
        return {"status": status, "why": why}
