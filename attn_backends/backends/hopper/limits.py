"""What boxes cannot say: that the softmax scale is positive, and that the pipeline fits the device. Light core alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attn_backends.backends.hopper.configs import config_for
from attn_backends.pipeline.budget import Budget
from attn_backends.pipeline.chip import HOPPER
from attn_backends.reason import Reason

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.request import Request


def check(request: Request, device: Device) -> list[Reason]:
    """A `scale` reason for a softmax scale that is not positive, an `smem` reason where the pipeline does not fit."""
    return [reason for reason in (_scale(request), _memory(request, device)) if reason is not None]


def _scale(request: Request) -> Reason | None:
    scale = request.softmax_scale
    if scale is None or scale > 0:
        return None
    return Reason(
        code="scale",
        axis="scale",
        got=scale,
        want="> 0",
        message=f"scale: got {scale}; the largest score is found before it is scaled, which wants a positive scale",
        source="limits.py of hopper",
        hint="negate q",
    )


def _memory(request: Request, device: Device) -> Reason | None:
    config = config_for(request.head_dim_qk, request.causal)
    if config is None or device.smem_bytes is None:
        return None
    needed = Budget(plan=config.plan, chip=HOPPER).shared
    if needed <= device.smem_bytes:
        return None
    return Reason(
        code="smem",
        axis="head_dim",
        got=request.head_dim_qk,
        want=f"<= {device.smem_bytes} bytes of shared memory per block",
        message=f"the pipeline for heads of {request.head_dim_qk} does not fit",
        source="configs.toml of hopper",
        hint=f"it takes {needed} bytes of shared memory per block, {device.name} has {device.smem_bytes}",
    )
