"""What boxes cannot say: how many sequences and heads a grid holds. Light core alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attn_backends.reason import Reason

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.request import Request

MOST = 65_535  # blocks along y and z of a grid


def check(request: Request, _device: Device) -> list[Reason]:
    """A `check` reason for each of sequences and query heads that are more than a grid holds."""
    counts = {"batch": request.batch, "num_q_heads": request.num_q_heads}
    return [
        Reason(code="check", axis=name, got=count, want=f"<= {MOST}", source="the grid of numba_tiled")
        for name, count in counts.items()
        if count > MOST
    ]
