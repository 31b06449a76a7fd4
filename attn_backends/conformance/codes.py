"""Quantised tensors of a case: descales other than 1 in the case's granularity, and the codes under them.

Scales depend on the case and the position, never on the values, so that a changed key leaves the others' codes alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attn_backends.conformance.case import Case
from attn_backends.conformance.drawing import SCALES, generator
from attn_backends.quantization import RANGES

DTYPES = {
    "scaled-fp8-e4m3": torch.float8_e4m3fn,
    "scaled-fp8-e5m2": torch.float8_e5m2,
    "scaled-int8": torch.int8,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Codes:
    """numbers [B, S, H, W], float64, each in the range of `dtype`; scale: float32 in its own shape, [B, S, H] per token."""

    dtype: torch.dtype
    numbers: torch.Tensor
    scale: torch.Tensor


def codes_of(case: Case, name: str, values: torch.Tensor) -> Codes:
    """The codes of q, k or v [B, S, H, W] and their descale."""
    dtype = DTYPES[getattr(case, f"{name}_format")]
    scale = _scale(case, name, tuple(values.shape), dtype)
    low, high = RANGES[str(dtype).removeprefix("torch.")]
    numbers = (values / _spread(scale, case.granularity_of(name), values.shape[1], case.scale_block)).clamp(low, high)
    return Codes(dtype=dtype, numbers=numbers.round() if dtype == torch.int8 else numbers, scale=scale)


def _scale(case: Case, name: str, sizes: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Powers of two between 1/2 and 2 times what fits the case's values, in the shape of the granularity."""
    batch, tokens, heads, width = sizes
    shapes = {
        "per_tensor": (1,) if case.seed % 2 else (),
        "per_head": (batch, heads) if case.seed % 2 else (heads,),
        "per_channel": (heads, width),
        "per_token_head": (batch, tokens, heads),
        "block": (batch, heads, -(-tokens // case.scale_block)),
    }
    size = SCALES[case.values] * (6.0 if case.values == "offset" else 3.0)
    base = size / 127.0 if dtype == torch.int8 else size
    drawn = torch.rand(shapes[case.granularity_of(name)], generator=generator(case, f"{name}_descale"))
    return base * torch.exp2(2.0 * drawn - 1.0)


def _spread(scale: torch.Tensor, granularity: str, tokens: int, block: int) -> torch.Tensor:
    """The scale as it multiplies [B, S, H, W]."""
    scale = scale.to(torch.float64)
    if granularity == "per_tensor":
        return scale.reshape(1, 1, 1, 1)
    if granularity == "per_head":
        return scale.reshape(-1, 1, scale.shape[-1], 1)
    if granularity == "per_channel":
        return scale.reshape(1, 1, *scale.shape)
    if granularity == "per_token_head":
        return scale.unsqueeze(-1)
    by_token = scale[:, :, torch.arange(tokens) // block]
    return by_token.transpose(1, 2).unsqueeze(-1)
