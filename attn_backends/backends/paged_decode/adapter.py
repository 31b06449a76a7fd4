"""The backend's door, `run`. Loaded by the registry, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attn_backends.backends.paged_decode.launch import launch
from attn_backends.backends.paged_decode.operands import operands_of

if TYPE_CHECKING:
    from attn_backends.call import Call


def run(call: Call) -> None:
    """Write call.out and, where asked, call.lse."""
    launch(call, operands_of(call))
