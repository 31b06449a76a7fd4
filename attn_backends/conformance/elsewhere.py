"""Other hardware: the device on which a box can be planned that is not for this one, and its name in a NOT_RUN. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from attn_backends.box import Box, Table
from attn_backends.conformance.standing import here
from attn_backends.device import Device
from attn_backends.registry.certificates import architecture


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """device: a pretended one that the box declares; needs: every architecture of the device list that it declares."""

    device: Device
    needs: str


def elsewhere_of(box: Box, table: Table) -> Elsewhere | None:
    """Where a box runs; None where no listed device is declared by it."""
    fitting = [device for device in _listed() if here([box], device, table)]
    if not fitting:
        return None
    return Elsewhere(device=fitting[0], needs=" or ".join(dict.fromkeys(_names(fitting))))


def _names(fitting: list[Device]) -> list[str]:
    """The kind of a device where all of that kind are declared, else its architecture."""
    partly = {device.kind for device in _listed() if device not in fitting}
    return [architecture(one.kind, one.arch if one.kind in partly else None) for one in fitting]


def _listed() -> list[Device]:
    return [Device.pretend(name) for name in Device.pretendable()]
