"""What boxes cannot say: whether the shipped tiles fit the device's shared memory. Light core and `configs` alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attn_backends.backends.paged_decode.configs import Config, Traits, config_for, padded
from attn_backends.reason import Reason

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.request import Request

SIZES = {"float16": 2, "bfloat16": 2, "float32": 4}  # bytes of an element


def check(request: Request, device: Device) -> list[Reason]:
    """A `smem` reason where no tiles are shipped for this call on this device, or those do not fit it."""
    if request.dtype not in SIZES or device.kind != "cuda" or device.arch is None:
        return []  # the boxes' to refuse
    config = _config(request, device)
    if config is not None and (device.smem_bytes is None or config.shared <= device.smem_bytes):
        return []
    width = padded(max(request.head_dim_qk, request.head_dim_v))
    return [
        Reason(
            code="smem",
            axis="head_dim",
            got=width,
            want="a width whose tiles fit",
            message=f"no tiles for {request.dtype} heads of {width} fit {device.name}",
            source="configs.toml of paged_decode",
            hint=None
            if config is None
            else f"they take {config.shared} bytes of shared memory per block, {device.name} has {device.smem_bytes}",
        )
    ]


def _config(request: Request, device: Device) -> Config | None:
    size = SIZES[request.dtype]
    traits = Traits.of(
        size=size, stored=sum(size if form == "dense" else 1 for form in (request.k_format, request.v_format)),
        widths=(request.head_dim_qk, request.head_dim_v), rows=request.seq_q * (request.num_q_heads // request.num_kv_heads),
        units=request.batch * request.num_kv_heads, batch_invariant=request.batch_invariant,
    )  # fmt: skip
    major, minor = device.arch or (0, 0)
    return config_for(major * 10 + minor, traits)
