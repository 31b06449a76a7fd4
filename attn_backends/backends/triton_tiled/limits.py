"""What boxes cannot say: whether the shipped tiles fit the device's shared memory. Light core and `configs` alone."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import TYPE_CHECKING

from attn_backends.backends.triton_tiled.configs import Traits, config_for, extras_of, padded
from attn_backends.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attn_backends.device import Device
    from attn_backends.request import Request

SIZES = {"float16": 2, "bfloat16": 2, "float32": 4}  # bytes of an element
WIDTHS = (256, 128, 64, 32, 16)


def check(request: Request, device: Device) -> list[Reason]:
    """One `smem` reason per kernel of the call that has no tiles for this device, or whose tiles do not fit it.

    A request does not say how its memory lies, so every row that such a call may come to has to fit.
    """
    if request.dtype not in SIZES or device.kind != "cuda" or device.arch is None:
        return []  # the boxes' to refuse
    width = padded(max(request.head_dim_qk, request.head_dim_v))
    found = (_reason(direction, width, request, device) for direction in _directions(request))
    return [reason for reason in found if reason is not None]


def _directions(request: Request) -> tuple[str, ...]:
    if not request.needs_backward:
        return ("forward",)
    return ("forward", "keys", "queries", "bias") if request.grad_bias else ("forward", "keys", "queries")


def _reason(direction: str, width: int, request: Request, device: Device) -> Reason | None:
    needed = _needed(direction, width, request, device)
    if _fits(needed, device):
        return None
    widest = next((w for w in WIDTHS if w < width and _fits(_needed(direction, w, request, device), device)), None)
    hint = (
        f"there are no tiles for {device.name}" if needed is None
        else f"they take {needed} bytes of shared memory per block, {device.name} has {device.smem_bytes}"
    )  # fmt: skip
    return Reason(
        code="smem",
        axis="head_dim",
        got=width,
        want="no width" if widest is None else f"<= {widest}",
        message=f"the {direction} kernel's tiles for {request.dtype} heads of {width} do not fit",
        source="configs.toml of triton_tiled",
        hint=hint if widest is None else f"{hint}; heads of {widest} fit",
    )


def _fits(needed: int | None, device: Device) -> bool:
    """Whether there are tiles, and they are known to fit or nothing is known of the device."""
    return needed is not None and (device.smem_bytes is None or needed <= device.smem_bytes)


def _needed(direction: str, width: int, request: Request, device: Device) -> int | None:
    """Bytes of shared memory per block of the largest row that the call may come to; None where one is missing."""
    major, minor = device.arch or (0, 0)
    wide = request.out_dtype == "float32" and request.dtype != "float32"
    return _largest(direction, major * 10 + minor, SIZES[request.dtype], width, _features(request), wide)


def _features(request: Request) -> tuple[tuple[str, bool], ...]:
    """What the request says of the features that cost registers."""
    return (
        ("SOFTCAP", request.softcap is not None),
        ("ALIBI", request.alibi),
        ("BIAS", request.bias),
        ("BOOL_MASK", request.mask == "bool"),
        ("BLOCK_MASK", request.block_mask_size is not None),
        ("DROPOUT", request.dropout_p > 0),
    )


@cache
def _largest(
    direction: str, arch: int, size: int, width: int, features: tuple[tuple[str, bool], ...], wide: bool
) -> int | None:
    """As `_needed`, of what decides it alone; `wide`: an output wider than q."""
    rows = [config_for(direction, arch, size, width, traits) for traits in _possible(dict(features), wide)]
    return max(row.shared for row in rows if row) if all(rows) else None


def _possible(features: dict[str, bool], wide: bool) -> Iterator[Traits]:
    """The traits that such a call may have: neither its memory nor an inner mask is known."""
    inner = {False, features["BLOCK_MASK"]}
    for described, aligned, inner_mask, wide_output in product((False, True), (False, True), inner, {False, wide}):
        extras = extras_of({**features, "INNER_MASK": inner_mask, "WIDE_OUTPUT": wide_output})
        yield Traits(described=described, aligned=aligned, extras=extras)
