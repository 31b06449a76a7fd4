"""The process's hooks, made when the first plugin is added, so that nobody pays for pluggy who does not use it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attn_backends.registry.hooks import Hooks

_hooks: Hooks | None = None
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


def add_hooks(plugin: object, name: str | None = None) -> str:
    """Put a plugin with `@hookimpl` functions in; returns its name (for `Policy(rank_hooks=...)` and `remove_hooks`)."""
    return hooks().add(plugin, name)


def remove_hooks(plugin_or_name: object) -> None:
    """Take a plugin out."""
    if _hooks is not None:
        _hooks.remove(plugin_or_name)
