"""The launch ledger: how often each decision's kernel ran. A count, not a log: one atomic step per launch.

`launches()` reads it, by decision id. Backward passes, launches that a CUDA graph captured (and that ran nothing yet),
replays of such graphs, and errors are counted apart; conversions with their bytes. Replays are seen under `watch_graphs`
and `profile` alone.
"""

from __future__ import annotations

import atexit
import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attn_backends.selector.decision import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch, as `attn_backends_launched` hooks see it."""

    decision: Decision
    backend: str
    conversions: tuple[tuple[str, int], ...]  # (name, bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord:
    """What ran under one decision id; `conversions` maps a name to the bytes it moved in total."""

    id: str
    backend: str
    launches: int  # forward, outside of graph capture
    errors: int
    conversions: dict[str, int]
    backwards: int = 0
    captures: int = 0  # launches into a graph
    replays: int = 0  # of launches in graphs

    @property
    def executed(self) -> bool:
        """Whether a kernel of it ran."""
        return bool(self.launches or self.backwards or self.replays)

    @property
    def happened(self) -> bool:
        """Whether anything was counted."""
        return self.executed or bool(self.captures or self.errors)

    def since(self, before: LaunchRecord) -> LaunchRecord:
        """What was counted after an earlier record of the same decision."""
        counts = {name: getattr(self, name) - getattr(before, name) for name in _COUNTS}
        moved = {name: size - before.conversions.get(name, 0) for name, size in self.conversions.items()}
        return LaunchRecord(
            id=self.id, backend=self.backend, conversions={name: size for name, size in moved.items() if size}, **counts
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        return asdict(self)


_COUNTS = ("launches", "errors", "backwards", "captures", "replays")


class Counter:
    """Counts up from many threads without a lock; `itertools.count` steps atomically."""

    __slots__ = ("_count", "_reads", "step")

    def __init__(self) -> None:
        self._count = itertools.count()
        self._reads = 0
        self.step = self._count.__next__

    def read(self) -> int:
        """Steps so far; a read is itself a step, which is taken off."""
        with _lock:
            self._reads += 1
            return next(self._count) - self._reads + 1


_lock = threading.Lock()


@dataclass(slots=True, eq=False)
class Account:
    """The counts of one decision."""

    decision: Decision
    launches: Counter = field(default_factory=Counter)
    errors: Counter = field(default_factory=Counter)
    backwards: Counter = field(default_factory=Counter)
    captures: Counter = field(default_factory=Counter)
    replays: Counter = field(default_factory=Counter)
    converted: dict[str, int] = field(default_factory=dict)

    def capture(self, what: str) -> None:
        """Count a launch into a graph, and tell who watches graphs; `what` is forward or backward."""
        self.captures.step()
        if on_capture is not None:
            on_capture(self, what)

    def convert(self, conversions: Iterable[tuple[str, int]]) -> None:
        """Add the bytes of a launch's conversions."""
        with _lock:
            for name, size in conversions:
                self.converted[name] = self.converted.get(name, 0) + size


on_capture: Callable[[Account, str], None] | None = None  # set by `watch_graphs`
_accounts: dict[int, Account] = {}  # by identity of the decision, which the account keeps alive
_settled: dict[str, LaunchRecord] = {}  # totals of decisions that are out of the cache
_MAX_ACCOUNTS = 16384


def account(decision: Decision) -> Account:
    """The account of a decision, opened if need be."""
    found = _accounts.get(id(decision))
    if found is None:
        with _lock:
            found = _accounts.setdefault(id(decision), Account(decision))
        if len(_accounts) > _MAX_ACCOUNTS:
            _settle_oldest()
    return found


def launches() -> dict[str, LaunchRecord]:
    """What ran so far, by decision id."""
    totals = dict(_settled)
    for one in list(_accounts.values()):
        _add(totals, one)
    return {name: record for name, record in totals.items() if record.happened}


def reset() -> None:
    """Start counting anew. Calls that are bound already go on counting into accounts nobody reads."""
    with _lock:
        _accounts.clear()
        _settled.clear()


def _add(totals: dict[str, LaunchRecord], one: Account) -> None:
    key = one.decision.id
    before = totals.get(key)
    conversions = dict(before.conversions) if before else {}
    for name, size in one.converted.items():
        conversions[name] = conversions.get(name, 0) + size
    counts = {name: getattr(one, name).read() + (getattr(before, name) if before else 0) for name in _COUNTS}
    totals[key] = LaunchRecord(id=key, backend=one.decision.backend or "", conversions=conversions, **counts)


def _settle_oldest() -> None:
    """Close the older half of the accounts into totals by id."""
    with _lock:
        old = [_accounts.pop(key) for key in list(_accounts)[: _MAX_ACCOUNTS // 2]]
    for one in old:
        _add(_settled, one)


def _store() -> None:
    """At the end of the process: the counts, beside the decision log."""
    if _accounts or _settled:
        from attn_backends.host.evidence import store_evidence

        store_evidence()


atexit.register(_store)
