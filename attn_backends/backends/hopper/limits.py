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
    """Where the pipeline takes more shared memory than the device has, and where a tensor is expanded."""
    return [*_expanded(request), *_too_large(request, device)]


def _expanded(request: Request) -> list[Reason]:
    """A `check` reason for each tensor whose heads, tokens or sequences share memory: TMA describes no stride of 0."""
    batch, seq_q, seq_k = request.batch, request.seq_q, request.seq_k
    tensors = {
        "q_strides": (request.q_strides, (batch, seq_q, request.num_q_heads)),
        "k_strides": (request.k_strides, (batch, seq_k, request.num_kv_heads)),
        "v_strides": (request.v_strides, (batch, seq_k, request.num_kv_heads)),
    }
    return [
        Reason(
            code="check", axis=name, got=strides, want="no stride of 0", source="tensor descriptors of hopper",
            hint="make an expanded tensor contiguous",
        )
        for name, (strides, extents) in tensors.items()
        if strides is not None and any(step == 0 and extent > 1 for step, extent in zip(strides, extents, strict=False))
    ]  # fmt: skip


def _too_large(request: Request, device: Device) -> list[Reason]:
    """A `smem` reason."""
    config = config_for(request.head_dim_qk, request.causal, request.seq_q)
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
