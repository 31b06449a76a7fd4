"""Who is to be timed on a cell, and the rows that the answers make. No torch."""

from __future__ import annotations

from datetime import UTC, datetime
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from attn_backends.calibrate.cells import sizes_of
from attn_backends.calibrate.points import Point
from attn_backends.registry.registry import Registry
from attn_backends.selector.cost.floor import floor_of
from attn_backends.selector.measured.machine import BackendKey
from attn_backends.selector.measured.row import Row
from attn_backends.selector.policy import Policy
from attn_backends.selector.select import select
from attn_backends.selector.times import NO_TIMES

if TYPE_CHECKING:
    from attn_backends.bench.cell import Cell
    from attn_backends.device import Device
    from attn_backends.selector.decision import Decision


def decision_of(cell: Cell, device: Device, registry: Registry) -> Decision:
    """Who fits a cell, and what the cost model says of them."""
    policy = Policy(numerics=frozenset(cell.numerics))
    return select(cell.request(), policy=policy, device=device, registry=registry, measurements=NO_TIMES)


def fitting(decision: Decision, wanted: tuple[str, ...] | None = None) -> list[str]:
    """The backends that fit, those first that are predicted to be fastest; references are not for speed."""
    found = [one for one in decision.candidates if one.status != "rejected" and one.tier != "reference"]
    return [one.name for one in found if wanted is None or one.name in wanted]


class Keys:
    """The backends of a registry by everything that their speed hangs on; their sources are read once."""

    def __init__(self, registry: Registry, device: Device) -> None:
        self._registry, self._device = registry, device
        self._known: dict[str, BackendKey] = {}

    def key(self, name: str) -> BackendKey:
        """Of one backend. Raises UnknownBackendError."""
        if name not in self._known:
            self._known[name] = BackendKey.of(self._registry.snapshot().get(name))
        return self._known[name]

    def made(self, row: Row) -> bool:
        """Whether a row is of a backend's present version and sources."""
        if row.backend not in self._registry.snapshot().names():
            return False
        key = self.key(row.backend)
        return (row.version, row.sources) == (key.version, key.sources)

    def row(self, point: Point, name: str, answer: dict[str, Any]) -> Row:
        """What a backend's answer says of a bucket."""
        key = self.key(name)
        floor = _floor_ms(point.cell, self._device)
        times = {field: answer[field] for field in ("ms", "q25", "q75", "samples") if field in answer}
        return Row(
            bucket=point.bucket, backend=name, version=key.version, sources=key.sources, status=answer["status"],
            floor_ms=floor, why=answer["why"],
            at=datetime.now(UTC).isoformat(timespec="seconds"), **times,
        )  # fmt: skip


def _floor_ms(cell: Cell, device: Device) -> float | None:
    """What no kernel could beat, over the sizes that the cell's times are means of."""
    floors = [floor_of(size.request(), device, sequences=size.sequences) for size in sizes_of(cell)]
    known = [one.seconds * 1e3 for one in floors if one is not None]
    return geometric_mean(known) if known else None
