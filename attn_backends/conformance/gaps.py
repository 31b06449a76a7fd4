"""Known gaps of a backend: the `attn-gaps.toml` beside its manifest, which the selector reads too and refuses by. No torch."""

from __future__ import annotations

import datetime as dt
import tomllib
from dataclasses import dataclass
from typing import Any

from attn_backends.registry.manifest import Manifest

FILE = "attn-gaps.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One entry; `raw` is everything it says."""

    id: str
    expires: str
    raw: dict[str, Any]

    def expired(self, today: dt.date) -> bool:
        """Whether its time is over; an expiry that is no date counts as over."""
        try:
            return dt.date.fromisoformat(self.expires) < today
        except ValueError:
            return True


def read_gaps(manifest: Manifest) -> tuple[Gap, ...]:
    """The gaps of a backend; none where it has no file, or one that the selector cannot read either."""
    path = None if manifest.folder is None else manifest.folder / FILE
    if path is None or not path.is_file():
        return ()
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    own = [raw for raw in data.get("gap", ()) if raw.get("backend") == manifest.name]
    return tuple(Gap(id=str(raw.get("id")), expires=str(raw.get("expires")), raw=raw) for raw in own)


def refused_by_gap(codes: tuple[str, ...]) -> bool:
    """Whether a refusal is by known gaps alone."""
    return set(codes) == {"gap"}
