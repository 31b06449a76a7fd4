"""What boxes cannot say: how many tokens share a scale. Light core alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attn_backends.backends.fp8.block import BLOCK
from attn_backends.reason import Reason

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.request import Request


def check(request: Request, device: Device) -> list[Reason]:
    """A `check` reason where a block is not of 128 tokens: a tile has one scale."""
    if request.scale_block in (None, BLOCK):
        return []
    return [
        Reason(
            code="check",
            axis="scale_granularity",
            got=request.scale_block,
            want=f"scale_block = {BLOCK}",
            message=f"scales per block of {request.scale_block} tokens, want {BLOCK}",
            source="limits.py of fp8",
            hint=f"quantise in blocks of {BLOCK} tokens",
        )
    ]
