"""Options that several commands share, and the names that complete on the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else on stdout.")


class Name(click.ParamType):  # type: ignore[type-arg]  # not generic in every click that is allowed
    """A word out of a list that is made when the shell asks for completions; the command itself checks it."""

    def __init__(self, name: str, known: Callable[[], Iterable[str]]) -> None:
        self.name = name
        self._known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The word as it stands."""
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The words that start with what was typed."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(word) for word in self._known() if word.lower().startswith(incomplete.lower())]


def _backends() -> Iterable[str]:
    from attn_backends.registry.registry import default_registry

    return default_registry().snapshot().names()


def _devices() -> Iterable[str]:
    from attn_backends.device import Device

    return [name.lower().replace(" ", "_") for name in Device.pretendable()]


def _configs() -> Iterable[str]:
    from attn_backends.planning import shipped

    return shipped()


BACKEND = Name("name", _backends)
DEVICE = Name("device", _devices)
CONFIG = Name("config", _configs)
