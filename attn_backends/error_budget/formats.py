"""Numbers through a format and back: scaled to its range, rounded, multiplied by the scale again."""

from __future__ import annotations

import torch

from attn_backends.errors import RequestError
from attn_backends.quantization import RANGES

BLOCK = 128  # tokens that share a scale under `block`
WEIGHT_RANGE = 256.0  # what a weight of 1 becomes in fp8: below it lie 17 powers of two

_DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "int8": torch.int8, "bf16": torch.bfloat16}
_ACROSS = {"per_tensor": (0, 1, 2), "per_head": (1, 2), "per_channel": (1,), "per_token_head": (2,)}  # of [H, S, D]


def through(values: torch.Tensor, name: str, granularity: str) -> torch.Tensor:
    """[H, S, D] float64 as the format `name` holds it, "" for as it is; a scale is 1 where all its numbers are 0.

    Raises RequestError for an unknown granularity.
    """
    if not name or not values.numel():
        return values
    if granularity == "block":
        return torch.cat([_rounded(part, name, (1, 2)) for part in values.split(BLOCK, dim=1)], dim=1)
    if granularity not in _ACROSS:
        raise RequestError("granularity", granularity, "one of " + ", ".join([*_ACROSS, "block"]))
    return _rounded(values, name, _ACROSS[granularity])


def weights_through(weights: torch.Tensor, name: str) -> torch.Tensor:
    """Softmax weights, the largest of a row 1, as they enter the second product."""
    if name in ("e4m3", "e5m2"):
        return _cast(weights * WEIGHT_RANGE, name) / WEIGHT_RANGE
    return weights.to(_DTYPES[name]).to(weights.dtype) if name else weights


def _rounded(values: torch.Tensor, name: str, across: tuple[int, ...]) -> torch.Tensor:
    largest = _largest(name)
    scale = values.abs().amax(dim=across, keepdim=True) / largest
    scale = torch.where((scale > 0) & scale.isfinite(), scale, torch.ones_like(scale))
    return _cast((values / scale).clamp(-largest, largest), name) * scale


def _largest(name: str) -> float:
    """Of both signs: int8's -128 is left out, so that a number and its negative are rounded alike."""
    return RANGES[str(_DTYPES[name]).removeprefix("torch.")][1]


def _cast(values: torch.Tensor, name: str) -> torch.Tensor:
    dtype = _DTYPES[name]
    whole = values if dtype.is_floating_point else values.round()
    return whole.float().to(dtype).to(values.dtype)
