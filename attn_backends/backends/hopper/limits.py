"""What boxes cannot say: whether the pipeline fits the device. Light core alone."""

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
    """An `smem` reason where the pipeline takes more shared memory than the device has."""
    config = config_for(request.head_dim_qk, request.causal)
    if config is None or device.smem_bytes is None:
        return []
    needed = Budget(plan=config.plan, chip=HOPPER).shared
    if needed <= device.smem_bytes:
        return []
    return [
        Reason(
            code="smem",
            axis="head_dim",
            got=request.head_dim_qk,
            want=f"<= {device.smem_bytes} bytes of shared memory per block",
            message=f"the pipeline for heads of {request.head_dim_qk} does not fit",
            source="configs.toml of hopper",
            hint=f"it takes {needed} bytes of shared memory per block, {device.name} has {device.smem_bytes}",
        )
    ]
