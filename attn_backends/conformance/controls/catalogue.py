"""Every control as (manifest, run, backward), loaded when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attn_backends.conformance.controls import NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One correct implementation; `title` is the first sentence of its module."""

    name: str
    title: str
    manifest: dict[str, Any]
    run: Callable[..., None]
    backward: Callable[..., Any] | None


def control(name: str) -> Control:
    """The control of this module name."""
    module = importlib.import_module(f"attn_backends.conformance.controls.{name}")
    title = (module.__doc__ or name).splitlines()[0].removeprefix("Control: ")
    return Control(
        name=name, title=title, manifest=module.MANIFEST, run=module.run, backward=getattr(module, "backward", None)
    )


def all_controls() -> tuple[Control, ...]:
    """All of them, by name."""
    return tuple(control(name) for name in NAMES)
