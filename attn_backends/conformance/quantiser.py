"""The quantiser of the baseline for `numerics = "quantized"`: e4m3, one scale for each head and 128 tokens, weights too.

    x      -> round(x / s) s,              s = max|x| over the tokens of a block, all of the width / 448
    p_ij   -> round(256 p_ij / t) t / 256, t = the row's largest weight

One quantiser for every backend: what is coarser than this is `approximate`. Rotated, it multiplies q and k by one
orthogonal matrix first, which leaves their products as they are and puts their roundings elsewhere: more of them where q and
k are parallel, less where numbers lie far out. A draw has scales up to twice as large, each
by a factor of its own: as good a quantiser, whose roundings fall elsewhere. All draws together take each scale evenly
through its octave, so that they show what error to expect where a single quantiser may be right by luck. Used by
`baseline` and `yardstick`; known to no backend.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache

import torch

from attn_backends.conformance.problem import Problem
from attn_backends.conformance.storing import is_wide

FORMAT = torch.float8_e4m3fn
LARGEST = 448.0  # of the format
BLOCK = 128  # tokens
WEIGHT_RANGE = 256.0  # what a row's largest weight becomes
DRAWS = 8  # in an octave
RELATIVE = 24.0**-0.5 * torch.finfo(FORMAT).eps  # of a number: rms of its rounding to nearest, over all mantissas


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiser:
    """With the smallest scales, or those of one draw, 0 to DRAWS - 1."""

    draw: int | None = None
    rotated: bool = False

    def problem(self, p: Problem, tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> Problem:
        """The problem with q, k and v as a kernel of this format holds them; what came as codes stays as it is."""
        wide = [is_wide(given) for given in tensors]
        if self.rotated and wide[0] and wide[1]:
            turn = rotation(p.q.shape[-1], self.draw or 0).to(p.q)
            p = dataclasses.replace(p, q=p.q @ turn, k=p.k @ turn)
        q, k, v = (
            self._blocks(values, index) if wide[index] else values for index, values in enumerate((p.q, p.k, p.v))
        )
        return dataclasses.replace(p, q=q, k=k, v=v)

    def weights(self, weights: torch.Tensor) -> torch.Tensor:
        """Softmax weights [B, H, Sq, Sk] as they enter the second product."""
        if not weights.numel():
            return weights
        return self._stored(weights, weights.amax(dim=-1, keepdim=True) / WEIGHT_RANGE, 3)

    def _blocks(self, values: torch.Tensor, index: int) -> torch.Tensor:
        """Tokens [B, H, S, W], block by block; `index` tells the factors of q, k, v and weights apart."""
        if not values.numel():
            return values
        blocks = values.split(BLOCK, dim=2)
        scales = [block.abs().amax(dim=(2, 3), keepdim=True) / LARGEST for block in blocks]
        return torch.cat([self._stored(*pair, index) for pair in zip(blocks, scales, strict=True)], dim=2)

    def _stored(self, values: torch.Tensor, scale: torch.Tensor, index: int) -> torch.Tensor:
        """The values through the format and back."""
        scale = torch.where((scale > 0) & scale.isfinite(), scale, torch.ones_like(scale))
        if self.draw is not None:
            start = torch.rand(scale.shape, generator=torch.Generator().manual_seed(index))
            scale = scale * torch.exp2(((start + self.draw / DRAWS) % 1.0).to(scale))
        return (values / scale).to(torch.float32).to(FORMAT).to(values.dtype) * scale


@cache
def rotation(width: int, draw: int) -> torch.Tensor:
    """An orthogonal matrix [width, width] in float64; each draw has its own."""
    drawn = torch.randn(
        width, width, dtype=torch.float64, generator=torch.Generator().manual_seed(DRAWS * width + draw)
    )
    found: torch.Tensor = torch.linalg.qr(drawn).Q
    return found
