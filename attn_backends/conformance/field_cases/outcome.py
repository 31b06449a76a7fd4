"""`Outcome`: how one case went, with what was expected and what came, ready to be printed or written as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

PASSED, FAILED, REFUSED = "passed", "failed", "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not as it should be."""

    what: str
    expected: Any
    got: Any

    def __str__(self) -> str:
        return f"{self.what}: expected {_short(self.expected)}, got {_short(self.got)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`refused`: the forced backend does not serve the case and said so, which is no failure.

    clause: the rule that the case checks, "" where its file names none
    """

    case: str
    dtype: str | None
    status: str
    clause: str = ""
    differences: tuple[Difference, ...] = ()
    refusal: str = ""

    @property
    def label(self) -> str:
        """`softcap-zero [float16]`; decisions have no dtype."""
        return f"{self.case} [{self.dtype}]" if self.dtype else self.case

    def __str__(self) -> str:
        lines = [f"{self.status:8} {self.label}" + (f": {self.clause}" if self.clause else "")]
        lines += [f"         {difference}" for difference in self.differences]
        if self.refusal:
            lines.append(f"         {self.refusal.splitlines()[0]}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain values; numbers that JSON has no word for become text."""
        return {
            "case": self.case,
            "clause": self.clause,
            "dtype": self.dtype,
            "status": self.status,
            "differences": [
                {"what": one.what, "expected": _plain(one.expected), "got": _plain(one.got)} for one in self.differences
            ],
            "refusal": self.refusal,
        }


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 400 else f"{text[:397]}..."


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
