"""Trying mutants and controls: which items, in which order, and what counts as a kill.

A kill is FAIL or SILENT_WRONG on an item that the victim, the same backend without the bug, passes. An exception is none, nor
is a fault of the suite itself. Items of the mutant's own clause come first; among those the order of `quick_order.json`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from attn_backends.conformance.backend_in_use import items_of, registered
from attn_backends.conformance.controls.catalogue import Control
from attn_backends.conformance.cover import added_items, quick_order
from attn_backends.conformance.engine import run_item
from attn_backends.conformance.item import Item
from attn_backends.conformance.kill_matrix import ControlRecord, MutantRecord
from attn_backends.conformance.mutants.host import Victim, declared
from attn_backends.conformance.mutants.mutant import Mutant
from attn_backends.conformance.mutants.seams import Seams
from attn_backends.conformance.outcome import Outcome, Result

VICTIM = "unmutated_victim"
KILLS = (Outcome.FAIL, Outcome.SILENT_WRONG)


@dataclass(slots=True)
class Trial:
    """One process's work: the victim's items, what the victim said to them, and which items have killed so far."""

    device: str = "cpu"
    items: tuple[Item, ...] = ()
    passed: dict[str, bool] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)

    def prepare(self) -> None:
        """Plan the victim's items, once; every mutant runs the same, and those that `quick_order.json` adds."""
        if not self.items:
            with victim() as name:
                planned = items_of(name, self.device)
            known = {item.id for item in planned}
            self.items = (*planned, *(item for item in added_items() if item.id not in known))

    def order(self, mutant: Mutant) -> list[Item]:
        """All items, the most promising first."""
        self.prepare()
        rank = {name: place for place, name in enumerate(quick_order())}
        last = len(rank)

        def key(item: Item) -> tuple[bool, int, int]:
            return mutant.clause not in item.clauses, -self.kills[item.id], rank.get(item.id, last)

        return sorted(self.items, key=key)

    def mutant(self, mutant: Mutant, *, full_matrix: bool = False, only: tuple[str, ...] = ()) -> MutantRecord:
        """Run a mutant against the items (or `only` some) until one kills it, or against all."""
        started, tried = time.perf_counter(), 0
        killers: list[Result] = []
        for item in self.order(mutant):
            if only and item.id not in only:
                continue
            tried += 1
            result = self.killed_by(mutant, item)
            if result is not None:
                killers.append(result)
                self.kills[item.id] += 1
                if not full_matrix:
                    break
        return MutantRecord(
            name=mutant.name, clause=mutant.clause, note=mutant.note, killers=tuple(result.id for result in killers),
            own=any(mutant.clause in result.clauses for result in killers), tried=tried,
            message=killers[0].message if killers else "", seconds=time.perf_counter() - started,
        )  # fmt: skip

    def killed_by(self, mutant: Mutant, item: Item) -> Result | None:
        """The result, if the item kills the mutant."""
        bad = mutant.victim()
        with registered(mutant.manifest(), bad.run, bad.backward) as name:
            result = run_item(name, item, self.device)
        return result if is_kill(result) and self.victim_passes(item) else None

    def victim_passes(self, item: Item) -> bool:
        """Whether the victim itself passes an item; asked once."""
        if item.id not in self.passed:
            with victim() as name:
                self.passed[item.id] = not run_item(name, item, self.device).outcome.bad
        return self.passed[item.id]

    def control(self, control: Control) -> ControlRecord:
        """Run a control against its own items."""
        started = time.perf_counter()
        with registered(control.manifest, control.run, control.backward) as name:
            items = items_of(name, self.device)
            results = [run_item(name, item, self.device) for item in items]
        failures = tuple((one.id, f"{one.outcome}: {one.message}") for one in results if one.outcome.bad)
        return ControlRecord(
            name=control.name, items=len(items), failures=failures, seconds=time.perf_counter() - started
        )  # fmt: skip


@contextmanager
def victim() -> Iterator[str]:
    """The unmutated victim, registered."""
    whole = Victim(Seams())
    with registered(declared(VICTIM), whole.run, whole.backward) as name:
        yield name


def is_kill(result: Result) -> bool:
    """A wrong value or a wrong refusal; no crash, and no fault of the suite."""
    return result.outcome in KILLS and not result.message.startswith("the suite is at fault")


def unmutated() -> Control:
    """The victim as a control."""
    whole = Victim(Seams())
    return Control(
        name="victim", title="the mutants' host", manifest=declared(VICTIM), run=whole.run, backward=whole.backward
    )
