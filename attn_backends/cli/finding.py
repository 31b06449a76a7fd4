"""`Finding`: one thing that `doctor` looked at. Data only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at. `level`: ok, note, warn or bad; only bad is broken."""

    area: str
    subject: str
    level: str
    text: str
    hint: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        return asdict(self)
