"""`--device` of the conformance commands: where a run happens (cpu, cuda), or which device a plan pretends (pretend:h200)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from attn_backends.cli.failure import Failure
from attn_backends.cli.options import Name
from attn_backends.device import Device

Command = TypeVar("Command", bound=Callable[..., Any])
REAL = ("cpu", "cuda")
PRETEND = "pretend:"


def _names() -> Iterable[str]:
    pretended = (f"{PRETEND}{name.lower().replace(' ', '_')}" for name in Device.pretendable())
    return (*REAL, *pretended)


def device_option(function: Command) -> Command:
    """The option; None stands for the best that is here: the GPU, or else the CPU."""
    shown = "cpu, cuda, or pretend:h200 to plan without running.  [cuda if it is here, else cpu]"
    return click.option("--device", type=Name("device", _names), help=shown)(function)


def chosen_device(text: str | None) -> Device:
    """The device facts behind the option. Raises Failure for a word that is none, RequestError for an unknown name."""
    if text is None:
        return Device.current()
    if text in REAL:
        found = Device.of(text)
        if text == "cuda" and found.arch is None:
            raise Failure("there is no CUDA device here", "--device pretend:h200 plans for one that is not here")
        return found
    return Device.pretend(text.removeprefix(PRETEND))
