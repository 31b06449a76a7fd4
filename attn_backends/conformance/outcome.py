"""`Outcome` and `Result`: what became of one check on one case. A closed list of words; nothing is a skip.

| outcome | meaning | fails a run |
| --- | --- | --- |
| PASS | declared and right | |
| FAIL | declared and wrong | yes |
| OVERCLAIM | declared and raises | yes |
| REFUSED | undeclared and refused: good | |
| UNDERCLAIM | undeclared and right | under --certify |
| SILENT_WRONG | undeclared, accepted and wrong: the worst | yes |
| CRASH | the process died | yes |
| TIMEOUT | the process hung | yes |
| NOT_RUN | no hardware for it: counts against completeness | |

No torch here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any


class Outcome(enum.StrEnum):
    """What became of one check on one case."""

    SILENT_WRONG = "SILENT_WRONG"  # first: the worst, and listed first everywhere
    CRASH = "CRASH"
    TIMEOUT = "TIMEOUT"
    FAIL = "FAIL"
    OVERCLAIM = "OVERCLAIM"
    UNDERCLAIM = "UNDERCLAIM"
    NOT_RUN = "NOT_RUN"
    REFUSED = "REFUSED"
    PASS = "PASS"  # noqa: S105  # an outcome, no password

    @property
    def bad(self) -> bool:
        """Whether one of these fails a run at any level."""
        return self in _BAD


_BAD = frozenset({Outcome.SILENT_WRONG, Outcome.CRASH, Outcome.TIMEOUT, Outcome.FAIL, Outcome.OVERCLAIM})


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of a report. `id` is `check/case`, and replays it: `attn-backends conformance run NAME --only ID`."""

    id: str
    outcome: Outcome
    clauses: tuple[str, ...]
    message: str = ""
    seconds: float = 0.0
    ratios: dict[str, float] = field(default_factory=dict)  # measured error over what was allowed, by rule

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        return {
            "id": self.id, "outcome": str(self.outcome), "clauses": list(self.clauses), "message": self.message,
            "seconds": round(self.seconds, 4), "ratios": self.ratios,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        """Read `to_json`'s dict."""
        return cls(**{**data, "outcome": Outcome(data["outcome"]), "clauses": tuple(data["clauses"])})
