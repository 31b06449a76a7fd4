"""Two runs against each other, item by item: only what changed. Nothing is printed for two equal runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from attn_backends.conformance.outcome import Outcome, Result
from attn_backends.conformance.record import RunRecord
from attn_backends.conformance.report.ratios import measured, ratio_text

WORSE = 1.5  # a measured ratio that grew by more than this factor is reported
FLOOR = 0.05  # ... unless it is still below this share of what is allowed: noise of nearly exact results
KINDS = ("outcome", "gone", "new", "ratio", "declared", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference. `worse` says whether it makes the newer run the weaker one."""

    kind: str
    subject: str
    old: str
    new: str
    worse: bool

    def __str__(self) -> str:
        mark = "!" if self.worse else " "
        return f"{mark} {self.kind:8} {self.subject}: {self.old} -> {self.new}"

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        return asdict(self)


def track(old: RunRecord, new: RunRecord) -> list[Change]:
    """Every difference between two runs, the worse ones first within each kind. What a partial run left out is none."""
    found = [*_results(old, new), *_volume(old, new), *_notes(old, new)]
    return sorted(found, key=lambda change: (KINDS.index(change.kind), not change.worse))


def _by_id(record: RunRecord) -> dict[str, Result]:
    """Each item's result. An item that ran here and waits for other hardware too, under another box, counts as run."""
    waiting_first = sorted(record.results, key=lambda one: one.outcome is not Outcome.NOT_RUN)
    return {one.id: one for one in waiting_first}


def _results(old: RunRecord, new: RunRecord) -> Iterator[Change]:
    before, now = _by_id(old), _by_id(new)
    for name, result in before.items():
        if name not in now and new.only is None:
            yield Change(
                kind="gone", subject=name, old=str(result.outcome), new="-", worse=result.outcome is Outcome.PASS
            )
    for name, result in now.items():
        if name not in before:
            if old.only is None:
                yield Change(kind="new", subject=name, old="-", new=str(result.outcome), worse=result.outcome.bad)
        elif result.outcome is not before[name].outcome:
            worse = _rank(result.outcome) < _rank(before[name].outcome)
            yield Change(
                kind="outcome", subject=name, old=str(before[name].outcome), new=str(result.outcome), worse=worse
            )
        else:
            yield from _ratios(before[name], result)


def _ratios(old: Result, new: Result) -> Iterator[Change]:
    for rule, ratio in measured(new).items():
        earlier = old.ratios.get(rule)
        if earlier is not None and ratio > max(WORSE * earlier, FLOOR):
            yield Change(
                kind="ratio", subject=f"{new.id} {rule}", old=ratio_text(earlier), new=ratio_text(ratio), worse=True
            )


def _rank(outcome: Outcome) -> int:
    """The place in `Outcome`, which goes from the worst to the best; refused and passed are two ways of being right."""
    return list(Outcome).index(Outcome.PASS if outcome is Outcome.REFUSED else outcome)


def _volume(old: RunRecord, new: RunRecord) -> Iterator[Change]:
    for axis in dict.fromkeys((*old.volume, *new.volume)):
        before, now = old.volume.get(axis, "-"), new.volume.get(axis, "-")
        if before != now:
            yield Change(kind="declared", subject=axis, old=before, new=now, worse=now == "-")


def _notes(old: RunRecord, new: RunRecord) -> Iterator[Change]:
    before, now = old.errors, new.errors
    yield from (
        Change(kind="note", subject=note, old="-", new="error", worse=True) for note in now if note not in before
    )
    yield from (
        Change(kind="note", subject=note, old="error", new="-", worse=False) for note in before if note not in now
    )
