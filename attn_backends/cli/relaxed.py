"""A request changed by a relaxation: `nearest` names axes, this finds the fields (or the device) that give that value.

An axis whose value cannot be had by changing its own fields (offsets beyond 32 bits, say) is left as it is; the caller
decides again and sees what is still missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from attn_backends.capability import REQUIRED, TABLE, Row
from attn_backends.device import Device
from attn_backends.errors import RequestError
from attn_backends.fields import MISSING
from attn_backends.request import Request
from attn_backends.selector.decision import Change
from attn_backends.values import show_arch

_ROWS: dict[str, tuple[Row, int | None]] = {
    name: (row, part) for row in TABLE for name, part in [(row.axis, None), *((p, i) for i, p in enumerate(row.parts))]
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """The changed request and device; `impossible` are the changes that no field gives."""

    request: Request
    device: Device
    impossible: tuple[Change, ...] = ()


def relax(request: Request, device: Device, changes: Iterable[Change]) -> Relaxed:
    """Apply every change that can be applied."""
    left: list[Change] = []
    for change in changes:
        if change.axis in ("device", "arch"):
            found = _other_device(device, change)
            device = found or device
            left += [] if found else [change]
        else:
            changed = _changed(request, device, change)
            request = changed or request
            left += [] if changed else [change]
    # One change can bring another with it: without pages there is no layout of pages.
    impossible = tuple(change for change in left if _changed(request, device, change) is None)
    return Relaxed(request=request, device=device, impossible=impossible)


def _changed(request: Request, device: Device, change: Change) -> Request | None:
    row, part = _ROWS.get(change.part or change.axis, (None, None))
    if row is None or (change.want is None and row.neutral is REQUIRED):
        return None
    for fields in ({}, *_attempts(request, row, change)):
        try:
            attempt = request.replace(**fields)
        except RequestError:
            continue
        value = row.read(attempt, device)
        if (value if part is None else value[part]) == change.want:
            return attempt
    return None


def _attempts(request: Request, row: Row, change: Change) -> Iterator[dict[str, Any]]:
    """Ways to say the wanted value, the plainest first."""
    names = [field.name for field in row.fields]
    if row.plain is not None:
        yield {row.plain: change.want}
    if (name := change.part or change.axis) in names:
        yield {name: change.want}
    yield {field.name: field.default for field in row.fields if field.default is not MISSING}
    if row.axis == "gqa_ratio":
        yield {"num_kv_heads": max(1, request.num_q_heads // change.want)}
        yield {"num_q_heads": request.num_kv_heads * change.want}
    if row.axis == "window":
        yield {"window_right": -1}
    if row.axis == "strides":
        yield {field: _last_dim_1(getattr(request, field)) for field in names}


def _last_dim_1(strides: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return None if strides is None else (*strides[:-1], 1)


def _other_device(device: Device, change: Change) -> Device | None:
    if change.axis == "device":
        if change.want == "cpu":
            return Device.pretend("cpu")
        return Device(kind=change.want, name=change.want, pretended=True)
    if change.want is None:
        return device if device.arch is None else None
    if device.kind == "cuda":
        return Device.pretend(show_arch(change.want))
    return Device(kind=device.kind, name=device.name, arch=change.want, pretended=True)
