"""`KillMatrix`: which item kills which mutant, which mutants survive, which controls fail; as a table, as JSON. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SCHEMA = "attn.self-test/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class MutantRecord:
    """What became of one mutant.

    killers: items that killed it, in the order tried; own: whether one of them proves the clause that it breaks
    tried: how many items ran; message: what the first killer said
    """

    name: str
    clause: str
    note: str
    killers: tuple[str, ...] = ()
    own: bool = False
    tried: int = 0
    message: str = ""
    seconds: float = 0.0

    @property
    def killed(self) -> bool:
        """Whether anything killed it."""
        return bool(self.killers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRecord:
    """What became of one control: items run, and (item, message) of those that it failed."""

    name: str
    items: int
    failures: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KillMatrix:
    """The suite's own strength on one machine.

    equivalent: name -> proof that it is no bug; elsewhere: name -> hardware that it needs; full: whether every mutant
    ran every item
    """

    mutants: tuple[MutantRecord, ...]
    controls: tuple[ControlRecord, ...]
    equivalent: dict[str, str] = field(default_factory=dict)
    elsewhere: dict[str, str] = field(default_factory=dict)
    full: bool = False
    seconds: float = 0.0

    @property
    def survivors(self) -> tuple[MutantRecord, ...]:
        """Mutants that nothing killed."""
        return tuple(record for record in self.mutants if not record.killed)

    @property
    def failed_controls(self) -> tuple[ControlRecord, ...]:
        """Correct implementations that the suite failed."""
        return tuple(record for record in self.controls if record.failures)

    @property
    def holds(self) -> bool:
        """The gate: every mutant killed, no control failed."""
        return not self.survivors and not self.failed_controls

    def summary(self) -> dict[str, int]:
        """What a `RunRecord` carries as `self_test`."""
        return {
            "mutants": len(self.mutants), "killed": len(self.mutants) - len(self.survivors),
            "controls": len(self.controls), "controls_failed": len(self.failed_controls),
        }  # fmt: skip

    def kills(self) -> dict[str, tuple[str, ...]]:
        """Item -> the mutants that it kills, those with most kills first."""
        found: dict[str, list[str]] = {}
        for record in self.mutants:
            for item in record.killers:
                found.setdefault(item, []).append(record.name)
        ordered = sorted(found.items(), key=lambda entry: (-len(entry[1]), entry[0]))
        return {item: tuple(names) for item, names in ordered}

    def __str__(self) -> str:
        return "\n".join(
            [self.headline(), "", *self._of_mutants(), *self._of_items(), *self._of_rest(), *self._of_controls()]
        )

    def headline(self) -> str:
        """`suite kill rate 61/61, controls 0/8 failed, 97 s`."""
        s = self.summary()
        return (
            f"suite kill rate {s['killed']}/{s['mutants']}, controls {s['controls_failed']}/{s['controls']} failed, "
            f"{self.seconds:.0f} s"
        )

    def _of_mutants(self) -> list[str]:
        width = max((len(record.name) for record in self.mutants), default=0)
        return [
            f"{record.clause:14} {record.name:{width}}  {_killers(record)}"
            for record in sorted(self.mutants, key=lambda record: (record.killed, record.clause))
        ]

    def _of_items(self) -> list[str]:
        return ["", "item: mutants that it kills", *(f"{len(names):4} {item}" for item, names in self.kills().items())]

    def _of_rest(self) -> list[str]:
        lines = [f"equivalent   {name}: {proof}" for name, proof in self.equivalent.items()]
        lines += [f"not run      {name}: needs {hardware}" for name, hardware in self.elsewhere.items()]
        return ["", *lines] if lines else []

    def _of_controls(self) -> list[str]:
        lines = ["", "control: items, failed"]
        for record in self.controls:
            lines.append(f"{record.name:24} {record.items:5} {len(record.failures):3}")
            lines += [f"    {item}: {message.splitlines()[0]}" for item, message in record.failures]
        return lines

    def to_json(self) -> dict[str, Any]:
        """Plain values only, schema `attn.self-test/1`."""
        return {
            "schema": SCHEMA, **self.summary(), "holds": self.holds, "full": self.full, "seconds": round(self.seconds, 1),
            "matrix": {
                record.name: {
                    "clause": record.clause, "note": record.note, "killers": list(record.killers), "own_clause": record.own,
                    "tried": record.tried, "message": record.message,
                }
                for record in self.mutants
            },
            "survivors": [record.name for record in self.survivors],
            "equivalent": self.equivalent, "not_run": self.elsewhere,
            "control_items": {record.name: record.items for record in self.controls},
            "control_failures": {record.name: [list(pair) for pair in record.failures] for record in self.failed_controls},
        }  # fmt: skip


def _killers(record: MutantRecord) -> str:
    if not record.killed:
        return f"SURVIVES {record.tried} items: {record.note}"
    more = f" and {len(record.killers) - 1} more" if len(record.killers) > 1 else ""
    other = "" if record.own else " (by another clause)"
    return f"{record.killers[0]}{more}{other}"
