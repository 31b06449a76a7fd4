"""The launch ledger: how often each decision's kernel ran. A count, not a log: one atomic step per launch.

`launches()` reads it, by decision id. Conversions are counted with their bytes; errors apart.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
    launches: int
    errors: int
    conversions: dict[str, int]


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
    converted: dict[str, int] = field(default_factory=dict)

    def convert(self, conversions: Iterable[tuple[str, int]]) -> None:
        """Add the bytes of a launch's conversions."""
        with _lock:
            for name, size in conversions:
                self.converted[name] = self.converted.get(name, 0) + size


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
    return {name: record for name, record in totals.items() if record.launches or record.errors}


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
    totals[key] = LaunchRecord(
        id=key,
        backend=one.decision.backend or "",
        launches=one.launches.read() + (before.launches if before else 0),
        errors=one.errors.read() + (before.errors if before else 0),
        conversions=conversions,
    )


def _settle_oldest() -> None:
    """Close the older half of the accounts into totals by id."""
    with _lock:
        old = [_accounts.pop(key) for key in list(_accounts)[: _MAX_ACCOUNTS // 2]]
    for one in old:
        _add(_settled, one)
