"""The process's registry by its verbs: register, unregister, list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attn_backends.registry.manifest import Manifest
from attn_backends.registry.registry import default_registry


def register(
    manifest: Manifest | Mapping[str, Any] | str | Path, fn: Callable[..., None] | None = None, **callables: Any
) -> Manifest:
    """Add a backend to this process: a manifest (dict or path of a `backend.toml`) and its `run(call)`.

    Further callables by role: `backward`, `plan`, `check`, `workspace`. Raises ManifestError, or DuplicateBackendError
    if the name is taken; either way nothing is changed. Thread-safe.
    """
    return default_registry().register(manifest, fn, **callables)


def unregister(name: str) -> None:
    """Take a backend out of this process. Raises UnknownBackendError with the nearest names."""
    default_registry().unregister(name)


def list_backends() -> tuple[Manifest, ...]:
    """The manifests of every usable backend, by name. Runs no plugin code and imports no torch."""
    return default_registry().snapshot().manifests
