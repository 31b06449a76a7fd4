"""Where a backend runs, in short: the devices and architectures that its boxes name. No box is read for anything else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from attn_backends.values import read_arch, show_arch

if TYPE_CHECKING:
    from attn_backends.registry.manifest import Manifest

Span = tuple[tuple[int, int], tuple[int, int]]
UNDECLARED = ("cuda",)  # what a box that names no device means
EVERYWHERE: Span = ((0, 0), (9999, 0))


def reach(manifest: Manifest) -> dict[str, list[str]]:
    """Architectures by kind of device, as `8.0-12.1` or `9.0`; empty where every architecture is taken or there is none."""
    spans: dict[str, set[Span]] = {}
    for box in manifest.boxes:
        for kind in _kinds(box.raw.get("device", UNDECLARED)):
            spans.setdefault(kind, set()).update(_spans(box.raw.get("arch")))
    return {kind: [] if EVERYWHERE in found else list(_shown(found)) for kind, found in sorted(spans.items())}


def reach_phrase(found: dict[str, list[str]]) -> str:
    """`cpu, cuda 8.0-12.1`."""
    return ", ".join(f"{kind} {' '.join(spans)}".rstrip() for kind, spans in found.items())


def _kinds(raw: Any) -> Iterable[str]:
    if raw == "any":
        return ("any",)
    return (raw,) if isinstance(raw, str) else raw


def _spans(raw: Any) -> Iterator[Span]:
    if raw == "any":
        yield EVERYWHERE
    elif isinstance(raw, dict):
        yield read_arch(raw["min"]), read_arch(raw["max"])
    elif raw is not None:
        single = not isinstance(raw, list) or isinstance(raw[0], int)
        for item in [raw] if single else raw:
            yield (read_arch(item), read_arch(item))


def _shown(spans: set[Span]) -> Iterator[str]:
    """Spans that no other one covers, in order."""
    for low, high in sorted(spans):
        if not any(other != (low, high) and other[0] <= low and high <= other[1] for other in spans):
            yield show_arch(low) if low == high else f"{show_arch(low)}-{show_arch(high)}"
