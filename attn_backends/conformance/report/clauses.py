"""The per-clause table: what became of every clause of the spec, those that no item touched included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from attn_backends.conformance.outcome import Outcome
from attn_backends.conformance.record import RunRecord
from attn_backends.conformance.spec import clauses

STATES = ("failed", "pass", "refused", "not run", "no case")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClauseRow:
    """One clause and how many items of each outcome named it."""

    id: str
    title: str
    counts: Mapping[Outcome, int]

    @property
    def state(self) -> str:
        """The word for the row: a failure outweighs everything, a pass outweighs refusals."""
        return state_of(self.counts)

    @property
    def failed(self) -> int:
        """How many failed."""
        return sum(count for outcome, count in self.counts.items() if outcome.bad)

    @property
    def total(self) -> int:
        """How many items named the clause."""
        return sum(self.counts.values())


def most_failed(record: RunRecord, most: int = 3) -> list[ClauseRow]:
    """The clauses of which the largest share failed: where to look first, since an item names every clause that it shows."""
    failed = [row for row in clause_rows(record) if row.failed]
    return sorted(failed, key=lambda row: (-row.failed / row.total, -row.failed))[:most]


def state_of(counts: Mapping[Outcome, int]) -> str:
    """failed, pass, refused, not run, or `no case` for nothing at all."""
    if any(count for outcome, count in counts.items() if outcome.bad):
        return "failed"
    if counts.get(Outcome.PASS):
        return "pass"
    if counts.get(Outcome.REFUSED) or counts.get(Outcome.UNDERCLAIM):
        return "refused"
    return "not run" if counts.get(Outcome.NOT_RUN) else "no case"


def clause_rows(record: RunRecord) -> list[ClauseRow]:
    """Every clause in the order of the spec, then those that the results name and the spec does not know."""
    found: dict[str, Counter[Outcome]] = {}
    for result in record.results:
        for clause in result.clauses:
            found.setdefault(clause, Counter())[result.outcome] += 1
    titles = _titles(record.spec)
    return [
        ClauseRow(id=name, title=titles.get(name, "(not in this spec)"), counts=found.get(name, Counter()))
        for name in dict.fromkeys((*titles, *sorted(found)))
    ]


def _titles(version: str) -> dict[str, str]:
    try:
        return {name: clause.title for name, clause in clauses(version).items()}
    except FileNotFoundError:  # a report of another version of the suite is read all the same
        return {}
