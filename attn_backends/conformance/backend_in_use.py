"""A backend registered for as long as it is tried, and the suite's items for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attn_backends.conformance.item import Item
from attn_backends.conformance.plan import plan
from attn_backends.device import Device
from attn_backends.registry.registry import default_registry


@contextmanager
def registered(
    manifest: dict[str, Any], run: Callable[..., None] | None, backward: Callable[..., Any] | None = None
) -> Iterator[str]:
    """In this process's registry until the block ends; gives the name. `run` None: the manifest names its kernel."""
    registry = default_registry()
    functions = {} if backward is None else {"backward": backward}
    name = registry.register(manifest, run, **functions).name
    try:
        yield name
    finally:
        registry.unregister(name)


def items_of(name: str, device: str = "cpu", level: str = "quick") -> tuple[Item, ...]:
    """The items of a registered backend."""
    return plan(default_registry().snapshot().get(name), level, Device.of(device)).items


def uncovered_by(name: str, device: str = "cpu") -> tuple[tuple[str, str], ...]:
    """(axis, value) that a registered backend declares and no item shows."""
    return plan(default_registry().snapshot().get(name), "quick", Device.of(device)).uncovered
