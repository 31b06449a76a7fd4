"""What boxes cannot say: how many sequences and heads a grid holds, how far keys may be apart. Light core alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attn_backends.backends.numba_mma.config import FAR
from attn_backends.reason import Reason

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.request import Request

MOST = 65_535  # blocks along y and z of a grid


def check(request: Request, _device: Device) -> list[Reason]:
    """A `check` reason for each number that is too large; one layer of the grid is kept free."""
    numbers = {
        "batch": (request.batch, MOST - 1),
        "num_q_heads": (request.num_q_heads, MOST),
        "seq_q": (request.seq_q, FAR),
        "seq_k": (request.seq_k, FAR),
    }
    return [
        Reason(code="check", axis=name, got=number, want=f"<= {most}", source="the grid of numba_mma")
        for name, (number, most) in numbers.items()
        if number > most
    ]
