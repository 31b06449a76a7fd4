"""Conformance certificates on this machine: which third-party backends, in which exact version, proved themselves, and where.

A certificate is a JSON file that the conformance suite writes: backend, version, a digest over the manifest and every
source file beside it, so that one changed byte makes it void, and the architecture of the device that it was earned on.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attn_backends.registry.manifest import Manifest
from attn_backends.registry.telling import tell

if TYPE_CHECKING:
    from attn_backends.device import Arch

SOURCES = (".py", ".toml", ".so", ".pyd", ".cu", ".cuh", ".cubin", ".ptx", ".pyi")
Certificate = tuple[str, str, str, str]  # backend, version, digest, architecture


def default_folder() -> Path:
    """Where certificates lie for this user."""
    import platformdirs

    return Path(platformdirs.user_data_dir("attn-backends")) / "certificates"


def read_certificates(folder: Path | None = None) -> frozenset[Certificate]:
    """Every readable certificate; a damaged file is reported and counts for nothing."""
    chosen = default_folder() if folder is None else folder
    found: set[Certificate] = set()
    for path in sorted(chosen.glob("*.json")) if chosen.is_dir() else ():
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            found.add((str(data["backend"]), str(data["version"]), str(data["digest"]), str(data["arch"])))
        except (OSError, ValueError, KeyError, TypeError) as error:
            tell(logging.WARNING, "certificate %s is unreadable: %s", path.name, error)
    return frozenset(found)


def architecture(kind: str, arch: Arch | None) -> str:
    """What a certificate is for: `sm_90`, `gfx942`; the kind of a device that has no architecture (`cpu`)."""
    from attn_backends.device import arch_name  # listing asks for no device

    return kind if arch is None else arch_name(kind, arch)


def certified_architectures(manifest: Manifest, certificates: Iterable[Certificate]) -> frozenset[str]:
    """The architectures on which exactly these sources proved themselves."""
    own = [one for one in certificates if one[0] == manifest.name]
    digest = source_digest(manifest) if own else ""
    return frozenset(arch for _, version, held, arch in own if (version, held) == (manifest.version, digest))


def source_digest(manifest: Manifest) -> str:
    """Digest over the manifest and every kernel source in its folder, by path and content; any byte changes it."""
    digest = hashlib.sha256(manifest.digest.encode())
    for path, content in _sources(manifest.folder):
        digest.update(f"{path}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()


def _sources(folder: Path | None) -> list[tuple[str, bytes]]:
    """(path within the folder, content) of every kernel source, by path."""
    if folder is None:
        return []
    paths = (path for path in folder.rglob("*") if path.suffix in SOURCES and path.is_file())
    return sorted((path.relative_to(folder).as_posix(), path.read_bytes()) for path in paths)


def certificate_of(manifest: Manifest, arch: str) -> Certificate:
    """What a valid certificate of this manifest says on an architecture."""
    return (manifest.name, manifest.version, source_digest(manifest), arch)
