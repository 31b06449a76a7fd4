"""Which of the shipped configurations serves a call on its device."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from attn_backends.backends.triton_tiled.configs import Config, Traits, config_for, padded

if TYPE_CHECKING:
    from attn_backends.call import Call


def chosen(direction: str, call: Call, traits: Traits) -> Config:
    """The shipped configuration for this call on its device."""
    width = padded(max(call.q.shape[-1], call.v.shape[-1]))
    config = config_for(direction, architecture(call.q.device), call.q.element_size(), width, traits)
    if config is None:
        raise LookupError(
            f"no {direction} tiles for width {width} and {call.q.dtype}: `limits.check` refuses such calls"
        )
    return config


@cache
def architecture(device: torch.device) -> int:
    """Compute capability as major * 10 + minor; 0 without a GPU (the interpreter)."""
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor
