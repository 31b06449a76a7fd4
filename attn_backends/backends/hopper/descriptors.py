"""Tensor descriptors for Hopper's tensor memory accelerator (TMA), over [batch, head, token, width].

TMA wants 16-byte aligned bases and strides and a width of stride 1. What lies outside a tensor is read as 0 and not
written, so that ragged tiles need no code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

if TYPE_CHECKING:
    import torch

ALIGNMENT = 16  # bytes
TILE = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)  # how a tile lies in shared memory


def heads_first(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """A view as [batch, head, token, width]."""
    return tensor.transpose(1, 2) if layout == "bshd" else tensor


def describable(tensor: torch.Tensor) -> bool:
    """Whether a descriptor of this tensor [batch, head, token, width] exists; an expanded one has none."""
    if tensor.data_ptr() % ALIGNMENT or (tensor.shape[3] > 1 and tensor.stride(3) != 1):
        return False
    size = tensor.element_size()
    outer = zip(tensor.stride()[:3], tensor.shape[:3], strict=True)
    return all(extent == 1 or (stride > 0 and stride * size % ALIGNMENT == 0) for stride, extent in outer)


def describe(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    """A descriptor of a describable tensor [batch, head, token, width], in blocks of `rows` tokens."""
    shape = list(tensor.shape)
    unit = ALIGNMENT // tensor.element_size()
    strides = [unit if extent == 1 else step for step, extent in zip(tensor.stride()[:3], shape[:3], strict=True)]
    return TensorDescriptor(tensor, shape, [*strides, 1], [1, 1, rows, shape[3]], TILE)
