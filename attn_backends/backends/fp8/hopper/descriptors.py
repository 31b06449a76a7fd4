"""Tensor descriptors for TMA over operands of 8 bits, and over the output; `hopper` says what they need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from attn_backends.backends.hopper.descriptors import ALIGNMENT

if TYPE_CHECKING:
    import torch

WIDEST = 128  # bytes of a row that lie together in shared memory


def describe(tensor: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A descriptor of a describable tensor [batch, head, row, column], in blocks of `rows` times `columns`."""
    size = tensor.element_size()
    tile = NVMMASharedLayout(swizzle_byte_width=min(WIDEST, columns * size), element_bitwidth=8 * size, rank=4)
    shape = list(tensor.shape)
    unit = ALIGNMENT // size
    strides = [unit if extent == 1 else step for step, extent in zip(tensor.stride()[:3], shape[:3], strict=True)]
    return TensorDescriptor(tensor, shape, [*strides, 1], [1, 1, rows, columns], tile)
