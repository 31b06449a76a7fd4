"""Loading a backend's code: lazy, isolated, once per process. The only place that imports backend modules."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attn_backends.errors import LoadError
from attn_backends.registry.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A backend's callables; the optional ones are None where the manifest names none."""

    run: Callable[..., None]
    backward: Callable[..., Any] | None = None
    plan: Callable[..., Any] | None = None
    workspace: Callable[..., int] | None = None
    conversions: Callable[..., Any] | None = None


def load_backend(manifest: Manifest) -> Loaded:
    """Import everything a manifest names, or nothing. Raises LoadError with the plugin's own words."""
    found = {role: load_callable(manifest, role) for role in ("backward", "plan", "workspace") if manifest.offers(role)}
    run = load_callable(manifest, "kernel")
    return Loaded(run=run, conversions=_conversions(manifest), **found)


def load_callable(manifest: Manifest, role: str) -> Callable[..., Any]:
    """One callable of a manifest. Any exception of its module, SystemExit included, becomes a LoadError."""
    if role in manifest.functions:
        return manifest.functions[role]
    module_name, _, attribute = manifest.callables[role].partition(":")
    try:
        module = importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may raise anything at all at import
        raise LoadError(f"{manifest.name}: importing {module_name} raised {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        raise LoadError(f"{manifest.name}: {module_name} has no callable {attribute!r} ({role} of {manifest.label})")
    return found  # type: ignore[no-any-return]  # checked callable above


def _conversions(manifest: Manifest) -> Callable[..., Any] | None:
    """The adapter's optional `conversions(call)`, which says what a launch converted and how many bytes."""
    if not manifest.converts or "kernel" not in manifest.callables:
        return None
    module = importlib.import_module(manifest.callables["kernel"].partition(":")[0])
    return getattr(module, "conversions", None)
