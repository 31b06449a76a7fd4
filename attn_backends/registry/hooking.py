"""The process's hooks, made when the first plugin is added, so that nobody pays for pluggy who does not use it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from attn_backends.registry.registry import default_registry

if TYPE_CHECKING:
    from attn_backends.registry.hooks import Hooks

_hooks: Hooks | None = None
_changes = 0
_lock = threading.Lock()


def active_hooks() -> Hooks | None:
    """The hooks, if any plugin was ever added."""
    return _hooks


def hooks() -> Hooks:
    """The hooks, made if need be."""
    global _hooks
    with _lock:
        if _hooks is None:
            from attn_backends.registry.hooks import Hooks

            _hooks = Hooks()
        return _hooks


def hook_changes() -> int:
    """Counts plugins put in and taken out; a decision may depend on them."""
    return _changes


def add_hooks(plugin: object, name: str | None = None) -> str:
    """Put a plugin with `@hookimpl` functions in; returns its name (for `Policy(rank_hooks=...)` and `remove_hooks`)."""
    added = hooks().add(plugin, name)
    _changed()
    return added


def remove_hooks(plugin_or_name: object) -> None:
    """Take a plugin out."""
    if _hooks is not None:
        _hooks.remove(plugin_or_name)
        _changed()


def _changed() -> None:
    """Drop what was decided, and bound, with the hooks of before."""
    global _changes
    _changes += 1
    default_registry().invalidate()
