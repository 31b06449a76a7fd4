"""Hooks for those who watch or steer decisions, through pluggy.

A hook that raises, or returns what its specification does not say, is reported once and switched off; the call goes on.

Plugins are objects or modules with functions marked `@attn_backends.hookimpl`; `add` puts one in, by name. Nothing is
loaded by itself: installing a package changes no decision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

from attn_backends.device import Device
from attn_backends.registry.telling import tell

if TYPE_CHECKING:
    from attn_backends.request import Request

PROJECT = "attn_backends"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Specs:
    """The four hooks; a plugin may take any of their arguments by name."""

    @hookspec
    def attn_backends_decided(self, decision: Any) -> None:
        """A new `Decision` was made (not on cache hits)."""

    @hookspec
    def attn_backends_launched(self, launch: Any) -> None:
        """A kernel ran; `launch` is a `Launch` with decision, backend and conversions."""

    @hookspec
    def attn_backends_rank(self, request: Request, candidates: Sequence[str]) -> Sequence[str] | None:
        """Order of backend names, best first; acts only when the policy names the plugin in `rank_hooks`."""

    @hookspec
    def attn_backends_device(self, device: Device) -> Device | None:
        """Correct or complete the facts of the current device."""


class Hooks:
    """The plugins of one process."""

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(Specs)
        self.watches_launches = False

    def add(self, plugin: object, name: str | None = None) -> str:
        """Put a plugin in and return its name. Raises ValueError if it is in already, or misspells a hook."""
        registered = self._manager.register(plugin, name=name)
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError:
            self._manager.unregister(plugin)
            raise
        self._refresh()
        return str(registered)

    def remove(self, plugin_or_name: object) -> None:
        """Take a plugin out; one that is not in is no error."""
        named = isinstance(plugin_or_name, str)
        plugin = self._manager.get_plugin(plugin_or_name) if named else plugin_or_name  # type: ignore[arg-type]  # a str, checked above
        if plugin is not None and self._manager.is_registered(plugin):
            self._manager.unregister(plugin)
        self._refresh()

    def names(self) -> tuple[str, ...]:
        """Names of the plugins that are in."""
        return tuple(name for name, plugin in self._manager.list_name_plugin() if plugin is not None)

    def decided(self, decision: Any) -> None:
        """Tell every watcher of a new decision."""
        for _ in self._call("attn_backends_decided", {"decision": decision}):
            pass

    def launched(self, launch: Any) -> None:
        """Tell every watcher of a launch."""
        for _ in self._call("attn_backends_launched", {"launch": launch}):
            pass

    def rank(self, request: Request, candidates: Sequence[str], plugins: Iterable[str]) -> list[str]:
        """Orders of the named plugins, one behind the other, each backend once."""
        chosen: list[str] = []
        arguments = {"request": request, "candidates": tuple(candidates)}
        for name, order in self._call("attn_backends_rank", arguments, _names, only=tuple(plugins)):
            known = [item for item in order if item in candidates]
            chosen += [item for item in known if item not in chosen]
            tell(logging.DEBUG, "rank hook %s: %s", name, known)
        return chosen

    def device(self, device: Device) -> Device:
        """The device after every plugin had its word."""
        for _, corrected in self._call("attn_backends_device", {"device": device}, _device):
            device = corrected if corrected is not None else device
        return device

    def _call(
        self,
        hook: str,
        arguments: dict[str, Any],
        read: Callable[[Any], Any] = lambda answer: answer,
        *,
        only: tuple[str, ...] | None = None,
    ) -> Iterator[tuple[str, Any]]:
        """(plugin, answer as `read` returns it) of every implementation that answers as it should."""
        caller = getattr(self._manager.hook, hook)
        implementations = list(reversed(caller.get_hookimpls()))
        if only is not None:
            implementations = [impl for name in only for impl in implementations if impl.plugin_name == name]
        for implementation in implementations:
            wanted = {name: arguments[name] for name in implementation.argnames}
            try:
                answer = read(implementation.function(**wanted))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001  # a hook is plugin code
                tell(
                    logging.WARNING, "hook %s of plugin %s raised %s: %s; the plugin is switched off",
                    hook, implementation.plugin_name, type(error).__name__, error,
                )  # fmt: skip
                self.remove(implementation.plugin)
                continue
            yield implementation.plugin_name, answer

    def _refresh(self) -> None:
        self.watches_launches = bool(self._manager.hook.attn_backends_launched.get_hookimpls())


def _names(order: Any) -> list[str]:
    """What a rank hook returned, as a list; None is no order."""
    names = [] if order is None else list(order)
    if isinstance(order, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"returned {order!r}, not a sequence of backend names or None")
    return names


def _device(corrected: Any) -> Device | None:
    if not isinstance(corrected, Device | None):
        raise TypeError(f"returned {corrected!r}, not a Device or None")
    return corrected
