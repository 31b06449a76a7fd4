"""Conformance certificates on this machine: which third-party backends, in which exact version, proved themselves.

A certificate is a JSON file that the conformance suite writes: backend, version, and a digest over the manifest and
every source file beside it, so that one changed byte makes it void.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attn_backends.registry.manifest import Manifest
from attn_backends.registry.telling import tell

SOURCES = (".py", ".toml", ".so", ".pyd", ".cu", ".cuh", ".cubin", ".ptx", ".pyi")
Certificate = tuple[str, str, str]  # backend, version, digest


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
            found.add((str(data["backend"]), str(data["version"]), str(data["digest"])))
        except (OSError, ValueError, KeyError, TypeError) as error:
            tell(logging.WARNING, "certificate %s is unreadable: %s", path.name, error)
    return frozenset(found)


def source_digest(manifest: Manifest) -> str:
    """Digest over the manifest and every kernel source in its folder; any byte changes it."""
    digest = hashlib.sha256(manifest.digest.encode())
    for path in _sources(manifest.folder):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _sources(folder: Path | None) -> Iterable[Path]:
    if folder is None:
        return ()
    return sorted(path for path in folder.rglob("*") if path.suffix in SOURCES and path.is_file())


def certificate_of(manifest: Manifest) -> Certificate:
    """What a valid certificate of this manifest says."""
    return (manifest.name, manifest.version, source_digest(manifest))
