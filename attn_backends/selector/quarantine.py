"""Quarantine: combinations known to be bad, as data with evidence; and known gaps that a backend's own file declares.

Both are boxes over the axes and sizes. A request inside one is refused, `quarantine` or `gap`.
"""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet

from attn_backends.box import nearest_names
from attn_backends.errors import ManifestError
from attn_backends.reason import Reason
from attn_backends.registry.environment import Environment, fits
from attn_backends.registry.requires import Requires, read_requires
from attn_backends.selector.conditions import Conditions, parse_conditions

if TYPE_CHECKING:
    from attn_backends.registry.manifest import Manifest
    from attn_backends.request import Request

SHIPPED = Path(__file__).with_name("quarantine.toml")
GAPS_FILE = "attn-gaps.toml"
_KEYS = ("id", "backend", "backend_version", "versions", "when", "reason", "evidence", "expires")
_NEEDED = ("id", "backend", "when", "reason", "evidence", "expires")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One known-bad combination (`code` quarantine) or known gap (`code` gap)."""

    code: str
    id: str
    backend: str
    backend_version: SpecifierSet
    versions: tuple[Requires, ...]
    when: Conditions
    reason: str
    evidence: str
    expires: str
    source: str

    def applies(self, manifest: Manifest, environment: Environment) -> bool:
        """Whether the entry speaks of this backend in this version on these package versions."""
        if manifest.name != self.backend or not fits(self.backend_version, manifest.version):
            return False
        known = ((environment.version(one.name), one.specifier) for one in self.versions)
        return all(version is None or fits(specifier, version) for version, specifier in known)

    def refuse(self, request: Request) -> Reason:
        """The record of a refusal by this entry."""
        sizes = {name: getattr(request, name) for name, _ in self.when.lengths()}
        got = ", ".join(f"{name} {value}" for name, value in sizes.items()) or "a request inside the box"
        lift = (
            "Policy(allow_quarantined=True) lifts it"
            if self.code == "quarantine"
            else "fix the gap and delete its entry"
        )
        return Reason(
            self.code, self.code, got, f"outside {{{self.when.describe()}}}",
            f"{self.code} {self.id}: {self.reason}; evidence: {self.evidence}", self.source, lift,
        )  # fmt: skip


def read_entries(path: Path, code: str, source: str) -> tuple[Entry, ...]:
    """Read a quarantine or gap file. Raises ManifestError with file and entry."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ManifestError(f"{source}: {getattr(error, 'strerror', None) or error}") from None
    entries = data.get(code, [])
    if not isinstance(entries, list) or not all(isinstance(raw, dict) for raw in entries):
        raise ManifestError(f"{source} {code}: got {entries!r}; write one [[{code}]] table per entry")
    return tuple(_entry(raw, code, f"{source} [[{code}]] {index}") for index, raw in enumerate(entries, 1))


def _entry(raw: dict[str, Any], code: str, where: str) -> Entry:
    for name in raw:
        if name not in _KEYS:
            raise ManifestError(f"{where} {name}: unknown key; {nearest_names(name, _KEYS)}")
    missing = [name for name in _NEEDED if name not in raw]
    if missing:
        raise ManifestError(f"{where}: missing {', '.join(missing)}")
    for name in ("id", "backend", "backend_version", "reason", "evidence"):
        if not isinstance(raw.get(name, ""), str):
            raise ManifestError(f"{where} {name}: got {raw[name]!r}; allowed: a text")
    listed = raw.get("versions", [])
    if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
        raise ManifestError(f'{where} versions: got {listed!r}; allowed: a list such as ["torch>=2.6"]')
    try:
        versions = tuple(read_requires(text) for text in listed)
        backend_version = SpecifierSet(raw.get("backend_version", ""))
    except ValueError as error:
        raise ManifestError(f"{where}: {error}") from None
    return Entry(
        code=code, id=raw["id"], backend=raw["backend"], backend_version=backend_version, versions=versions,
        when=parse_conditions(raw["when"], lambda text: ManifestError(f"{where} when {text}")),
        reason=raw["reason"], evidence=raw["evidence"], expires=str(raw["expires"]), source=where,
    )  # fmt: skip


@functools.lru_cache(maxsize=1)
def shipped_entries() -> tuple[Entry, ...]:
    """The entries that come with the package."""
    return read_entries(SHIPPED, "quarantine", SHIPPED.name)


def entries_for(manifests: Iterable[Manifest], shipped: Sequence[Entry] | None = None) -> tuple[Entry, ...]:
    """Every quarantine entry and gap that speaks of one of these backends. Raises ManifestError for an illegal file."""
    found: list[Entry] = []
    known = shipped_entries() if shipped is None else shipped
    for manifest in manifests:
        found += [entry for entry in known if entry.backend == manifest.name]
        gaps = manifest.folder / GAPS_FILE if manifest.folder else None
        if gaps is not None and os.path.lexists(gaps):
            label = manifest.label.rsplit("/", 1)[0]
            found += [
                entry for entry in read_entries(gaps, "gap", f"{label}/{GAPS_FILE}") if entry.backend == manifest.name
            ]
    return tuple(found)


def readable_entries(manifests: Iterable[Manifest]) -> tuple[tuple[Entry, ...], dict[str, str]]:
    """(entries of every backend whose gaps can be read, by name what is wrong with the gaps of the others)."""
    found: list[Entry] = []
    unreadable: dict[str, str] = {}
    for manifest in manifests:
        try:
            found += entries_for([manifest])
        except ManifestError as error:
            unreadable[manifest.name] = str(error)
    return tuple(found), unreadable
