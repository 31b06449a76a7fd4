"""The calibrated times that picks were judged by, as plain values beside the picks: who reads them can judge again. No torch.

Place by place: milliseconds, or why there are none. Rows of other sources than today's count for nothing and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from attn_backends.calibrate.rows import Keys
from attn_backends.selector.measured.bucket import Bucket
from attn_backends.selector.measured.machine import Machine, device_key
from attn_backends.selector.measured.row import OK, Row
from attn_backends.selector.measured.store import StoredTimes

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.registry.registry import Registry
    from attn_backends.selector.times import Measurements

Json = dict[str, Any]


def kept(times: Measurements, device: Device, registry: Registry) -> Json | None:
    """The places of this device; None for a store that has no rows."""
    chip = device_key(device)
    if not isinstance(times, StoredTimes) or chip is None:
        return None
    keys = Keys(registry, device)
    places: list[Json] = []
    backends: dict[str, Json] = {}
    for (of, kind), known in times.kinds.items():
        for place, rows in known.items() if of == chip else ():
            own = [row for row in rows.values() if keys.made(row)]
            backends.update({row.backend: {"version": row.version, "sources": row.sources} for row in own})
            if own:
                places.append(_place(kind, place, own))
    return {
        "machine": asdict(times.machine), "device": chip, "backends": dict(sorted(backends.items())), "places": places,
    }  # fmt: skip


def kept_times(data: Mapping[str, Any]) -> StoredTimes:
    """The store that `kept` wrote down. Raises KeyError, TypeError or ValueError for anything else."""
    rows = [
        Row(
            bucket=Bucket(one["kind"], tuple(one["place"])), backend=name, at=one["at"],
            **data["backends"][name], **_said(ms),
        )
        for one in data["places"]
        for name, ms in one["ms"].items()
    ]  # fmt: skip
    return StoredTimes.of({data["device"]: rows}, Machine(**data["machine"]))


def _place(kind: str, place: tuple[int, ...], rows: list[Row]) -> Json:
    said = {row.backend: row.status if row.ms is None else float(f"{row.ms:.5g}") for row in rows}
    return {"kind": kind, "place": list(place), "at": min(row.at for row in rows), "ms": dict(sorted(said.items()))}


def _said(ms: float | str) -> Json:
    return {"status": ms} if isinstance(ms, str) else {"status": OK, "ms": float(ms)}
