"""Known gaps of a backend: the `attn-gaps.toml` beside its manifest, which the selector reads too and refuses by. No torch."""

from __future__ import annotations

import datetime as dt
import os
import tomllib
from dataclasses import dataclass
from typing import Any

from attn_backends.errors import ManifestError
from attn_backends.registry.manifest import Manifest

FILE = "attn-gaps.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One entry; `raw` is everything it says, `place` counts the entries of its file from 1, as reasons of refusals do."""

    id: str
    expires: str
    place: int
    raw: dict[str, Any]

    def expired(self, today: dt.date) -> bool:
        """Whether its time is over; an expiry that is no date counts as over."""
        try:
            return dt.date.fromisoformat(self.expires) < today
        except ValueError:
            return True


def read_gaps(manifest: Manifest) -> tuple[Gap, ...]:
    """The gaps of a backend; none where it has no file. Raises ManifestError, naming the file, for one that is no TOML.

    What an entry may say is the selector's to judge: it refuses every call of a backend whose entries are illegal.
    """
    path = None if manifest.folder is None else manifest.folder / FILE
    if path is None or not os.path.lexists(path):
        return ()
    label = f"{manifest.label.rpartition('/')[0] or manifest.name}/{FILE}"
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("gap", [])
    except OSError as error:
        raise ManifestError(f"{label}: {error.strerror}") from None
    except ValueError as error:
        raise ManifestError(f"{label}: not TOML: {error}; correct it, or delete it") from None
    if not isinstance(entries, list) or not all(isinstance(raw, dict) for raw in entries):
        raise ManifestError(f"{label} gap: got {entries!r}; write one [[gap]] table per entry")
    return tuple(
        Gap(id=str(raw.get("id")), expires=str(raw.get("expires")), place=place, raw=raw)
        for place, raw in enumerate(entries, 1)
        if raw.get("backend") == manifest.name
    )


def refused_by_gap(codes: tuple[str, ...]) -> bool:
    """Whether a refusal is by known gaps alone."""
    return set(codes) == {"gap"}
