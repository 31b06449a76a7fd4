"""Options that several commands share, and the names that complete on the command line."""

from __future__ import annotations

import math
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


class Finite(click.FloatRange):
    """A range of numbers that are some: "nan" is within every range of click's, and a budget that never ends."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Refuses what is none, infinity too."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


def _backends() -> Iterable[str]:
    from attn_backends.registry.registry import default_registry

    return default_registry().snapshot().names()


def devices() -> list[str]:
    """Names of the devices that can be pretended, as they are typed."""
    from attn_backends.device import Device

    return [name.lower().replace(" ", "_") for name in Device.pretendable()]


def _configs() -> Iterable[str]:
    from attn_backends.planning import shipped

    return shipped()


def _numerics() -> Iterable[str]:
    from attn_backends.registry.manifest import NUMERICS

    return NUMERICS


BACKEND = Name("name", _backends)
DEVICE = Name("device", devices)
CONFIG = Name("config", _configs)
POSITIVE = Finite(0, min_open=True)


def _words(_ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Kinds of numerics from an option that is repeated, or given once with commas."""
    words = tuple(word for one in given for word in map(str.strip, one.split(",")) if word)
    strange = [word for word in words if word not in _numerics()]
    if strange or (given and not words):
        raise click.BadParameter(f"got {', '.join(given)!r}; allowed: {', '.join(_numerics())}", param=param)
    return words


def policy_options(function: Callable[..., None]) -> Callable[..., None]:
    """The options that a policy is put together from: a file, and what is laid over it."""
    for option in reversed(_POLICY):
        function = option(function)
    return function


_POLICY = (
    click.option(
        "--policy", type=click.Path(exists=True, dir_okay=False), help="Policy file (TOML); docs/policy.md lists its keys."
    ),
    click.option("--prefer", type=BACKEND, multiple=True, help="Best first; may be repeated."),
    click.option("--block", type=BACKEND, multiple=True, help="Never these; may be repeated."),
    click.option("--only", type=BACKEND, multiple=True, help="None but these; may be repeated."),
    click.option(
        "--numerics", type=Name("kinds", _numerics), multiple=True, callback=_words,
        help="Allow these: exact, quantized, approximate; with commas, or repeated.  [exact]",
    ),
)  # fmt: skip
