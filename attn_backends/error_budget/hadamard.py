"""A random rotation of head vectors that leaves every score as it is and spreads outliers over all channels.

    x -> (x * signs) H / sqrt(n),   H the Hadamard matrix of size n, signs = +-1 at random

q and k go through the same rotation R; (q R)(k R)^T = q k^T since R is orthogonal. A channel that is a hundred times larger
than the others becomes a sum that every channel shares, so one scale fits all. Known as incoherent processing: QuIP#
(arXiv:2402.04396), used for attention by FlashAttention-3 (arXiv:2407.08608). A width that is no power of two is rotated
in blocks of its largest power of two.
"""

from __future__ import annotations

import math

import torch


def rotated(values: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """[..., D], any floating dtype, rotated along D; the same seed gives the same rotation. float64 stays exact to 1e-15."""
    width = values.shape[-1]
    generator = torch.Generator().manual_seed(seed)
    signs = 1 - 2 * torch.randint(0, 2, (width,), generator=generator)
    blocks = (values * signs.to(values)).unflatten(-1, (-1, block_width(width)))
    return _hadamard(blocks).flatten(-2)


def block_width(width: int) -> int:
    """The largest power of two that divides a width: all of it for 64, 128, 256; 16 for 80."""
    return width & -width


def _hadamard(values: torch.Tensor) -> torch.Tensor:
    """The orthonormal Hadamard transform along the last axis, a power of two, by butterflies."""
    size = values.shape[-1]
    step = 1
    while step < size:
        pairs = values.unflatten(-1, (-1, 2, step))
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        values = torch.stack((low + high, low - high), dim=-2).flatten(-3)
        step *= 2
    return values / math.sqrt(size)
