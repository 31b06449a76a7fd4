"""Where manifests come from: `backends/*/backend.toml` inside the package, and entry points of other distributions.

Runs no plugin code and imports no plugin package: the manifest's file is found from the top-level package's location.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from attn_backends.capability import TABLE, Row
from attn_backends.errors import DuplicateBackendError, ManifestError
from attn_backends.registry.manifest import Manifest, read_manifest_file

GROUP = "attn_backends.backends"
BUILTIN_FOLDER = Path(__file__).parent.parent / "backends"


@dataclass(frozen=True, slots=True)
class Broken:
    """A backend that was announced but whose manifest cannot be used; `error` says why."""

    name: str
    origin: str
    label: str
    error: str


@dataclass(frozen=True, slots=True)
class Found:
    """Everything one look around found."""

    manifests: tuple[Manifest, ...]
    broken: tuple[Broken, ...]


def builtin(folder: Path = BUILTIN_FOLDER, table: tuple[Row, ...] = TABLE) -> Found:
    """The in-tree backends, by name."""
    manifests: list[Manifest] = []
    broken: list[Broken] = []
    for path in sorted(folder.glob("*/backend.toml")):
        label = f"{path.parent.name}/backend.toml"
        try:
            manifests.append(read_manifest_file(path, label=label, origin="builtin", table=table))
        except ManifestError as error:
            broken.append(Broken(path.parent.name, "builtin", label, str(error)))
    return Found(tuple(manifests), tuple(broken))


def third_party(table: tuple[Row, ...] = TABLE) -> Found:
    """The backends that installed distributions announce."""
    manifests: list[Manifest] = []
    broken: list[Broken] = []
    for point in sorted(set(importlib.metadata.entry_points(group=GROUP)), key=lambda point: (point.name, point.value)):
        try:
            manifests.append(_from_entry_point(point, table))
        except ManifestError as error:
            broken.append(Broken(point.name, "third_party", f"entry point {point.value}", str(error)))
    return Found(tuple(manifests), tuple(broken))


def _from_entry_point(point: importlib.metadata.EntryPoint, table: tuple[Row, ...]) -> Manifest:
    package, _, file = point.value.partition(":")
    label = f"{package}/{file}"
    if not file.endswith(".toml"):
        raise ManifestError(f'entry point {point.name} = "{point.value}": write "package:backend.toml"')
    manifest = read_manifest_file(
        _package_folder(package, label) / file, label=label, origin="third_party", table=table
    )
    if manifest.name != point.name:
        raise ManifestError(f"{label} name: the manifest says {manifest.name!r}, its entry point {point.name!r}")
    return manifest


def _package_folder(package: str, label: str) -> Path:
    """Folder of a package by its top-level name; `find_spec` of a top-level name imports nothing."""
    top, *below = package.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError) as error:
        raise ManifestError(f"{label}: package {top!r} cannot be located: {error}") from None
    locations = list(spec.submodule_search_locations or ()) if spec else []
    if not locations:
        raise ManifestError(f"{label}: no package {top!r} is installed; manifests lie inside a package")
    return Path(locations[0]).joinpath(*below)


def without_duplicates(found: Iterable[Found]) -> Found:
    """Drop every third-party claim to a name that somebody else has too; builtin names stay builtin."""
    founds = tuple(found)
    manifests = [manifest for one in founds for manifest in one.manifests]
    broken = [item for one in founds for item in one.broken]
    claims = Counter(plain_name(manifest.name) for manifest in manifests)
    kept: list[Manifest] = []
    for manifest in manifests:
        if claims[plain_name(manifest.name)] == 1 or manifest.origin == "builtin":
            kept.append(manifest)
        else:
            broken.append(Broken(manifest.name, manifest.origin, manifest.label, _claimed_twice(manifest, manifests)))
    return Found(tuple(kept), tuple(broken))


def _claimed_twice(manifest: Manifest, manifests: Iterable[Manifest]) -> str:
    others = [
        other.label
        for other in manifests
        if other is not manifest and plain_name(other.name) == plain_name(manifest.name)
    ]
    return str(
        DuplicateBackendError(f"{manifest.label}: the name {manifest.name!r} is also claimed by {', '.join(others)}")
    )


def plain_name(name: str) -> str:
    """Names that differ only in `-` and `_` are the same name."""
    return name.replace("-", "_")
