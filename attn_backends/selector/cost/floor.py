"""The roofline: the time that no kernel can beat on a device, and which of four resources sets it.

    floor = max( FLOPs / matrix rate, exponentials / exp rate, necessary bytes / bandwidth, one launch )

at the vendor's peaks, for the visible pairs alone. A call that needs gradients costs both passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attn_backends.selector.cost import operations, traffic
from attn_backends.selector.cost.extent import extent_of
from attn_backends.selector.cost.rates import Rates, rates_of

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.request import Request
    from attn_backends.selector.cost.sequences import Sequences

BOUNDS = ("matrix", "exp", "memory", "launch")
PASSES = ("forward", "backward", "both")


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Amounts, and the seconds that each would take alone at the device's peak."""

    flops: float
    exponentials: float
    bytes: float
    matrix: float
    exp: float
    memory: float
    launch: float

    @property
    def seconds(self) -> float:
        """The largest of the four."""
        return max(self.matrix, self.exp, self.memory, self.launch)

    @property
    def bound(self) -> str:
        """What sets it: matrix, exp, memory or launch."""
        return max(BOUNDS, key=lambda name: float(getattr(self, name)))


def floor_of(
    request: Request, device: Device, *, sequences: Sequences | None = None, passes: str | None = None
) -> Floor | None:
    """The floor of a request; None where the device's rates are unknown.

    `sequences` are the real lengths, where they are known. `passes` is one of PASSES; left out, it is what the request
    asks for: both where it needs gradients.
    """
    rates = rates_of(device, request.dtype)
    if rates is None:
        return None
    extent = extent_of(request, sequences)
    which = passes or ("both" if request.needs_backward else "forward")
    forward, backward = which != "backward", which != "forward"
    return _floor(
        rates,
        flops=forward * operations.forward_flops(request, extent.visible)
        + backward * operations.backward_flops(request, extent.visible),
        exponentials=(forward + backward) * operations.exponentials(request, extent.visible),
        moved=forward * traffic.necessary_forward(request, extent)
        + backward * traffic.necessary_backward(request, extent),
        launches=forward + backward,
    )


def _floor(rates: Rates, *, flops: float, exponentials: float, moved: float, launches: int) -> Floor:
    return Floor(
        flops=flops, exponentials=exponentials, bytes=moved, matrix=flops / rates.matrix,
        exp=exponentials / rates.exp if rates.exp else 0.0, memory=moved / rates.memory,
        launch=launches * rates.launch,
    )  # fmt: skip
