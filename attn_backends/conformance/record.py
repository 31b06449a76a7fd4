"""`RunRecord`: one run of the suite against one backend, whole; every report, certificate and comparison is made of it.

No torch here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from attn_backends.conformance.outcome import Outcome, Result

SCHEMA = "attn.conformance/1"
ERROR = "error: "  # how a note starts that fails the run
LEVELS = ("quick", "full", "deep")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What was run, on what, and what became of it.

    `volume`: per axis what the backend declares, so that declaring little cannot look like success. `digest`: of the
    manifest and kernel sources (`registry.certificates.source_digest`). `self_test`: the suite's own strength on this machine,
    {mutants, killed, controls, controls_failed}, or None where it was not measured. `only`: the filter of a partial run.
    `notes`: what no single item says. One that starts with `ERROR` fails the run as a bad outcome does: a gap that passes,
    matches nothing or has expired, a declared feature that no case exercised.
    """

    backend: str
    version: str
    digest: str
    numerics: str
    level: str
    spec: str
    suite: str
    device: dict[str, Any]
    environment: dict[str, Any]
    volume: dict[str, str]
    results: tuple[Result, ...]
    gaps: tuple[dict[str, Any], ...] = ()
    self_test: dict[str, int] | None = None
    only: str | None = None
    seconds: float = 0.0
    started: str = ""
    notes: tuple[str, ...] = ()

    def counts(self) -> dict[Outcome, int]:
        """How many results per outcome, every outcome present."""
        found = Counter(result.outcome for result in self.results)
        return {outcome: found.get(outcome, 0) for outcome in Outcome}

    @property
    def conforms(self) -> bool:
        """Nothing failed, no note is an error, and something passed. Says nothing of what a partial run left out."""
        bad = any(result.outcome.bad for result in self.results) or bool(self.errors)
        return not bad and self.counts()[Outcome.PASS] > 0

    @property
    def errors(self) -> tuple[str, ...]:
        """The notes that fail the run, without their mark."""
        return tuple(note.removeprefix(ERROR) for note in self.notes if note.startswith(ERROR))

    @property
    def remarks(self) -> tuple[str, ...]:
        """The other notes."""
        return tuple(note for note in self.notes if not note.startswith(ERROR))

    def to_json(self) -> dict[str, Any]:
        """Plain values only, schema `attn.conformance/1`."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in ("results", "gaps", "notes")}
        return {
            "schema": SCHEMA, **plain, "conforms": self.conforms, "gaps": list(self.gaps), "notes": list(self.notes),
            "counts": {str(outcome): count for outcome, count in self.counts().items()},
            "results": [result.to_json() for result in self.results],
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RunRecord:
        """Read `to_json`'s dict. Raises ValueError for another schema."""
        if data.get("schema") != SCHEMA:
            raise ValueError(f"not a conformance report: schema {data.get('schema')!r}, want {SCHEMA!r}")
        kept = {name: data[name] for name in cls.__slots__ if name in data}
        kept["results"] = tuple(Result.from_json(item) for item in data["results"])
        kept["gaps"], kept["notes"] = tuple(data["gaps"]), tuple(data["notes"])
        return cls(**kept)
