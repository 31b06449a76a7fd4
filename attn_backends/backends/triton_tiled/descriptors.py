"""Tensor descriptors for Hopper's tensor memory accelerator (TMA), where a tensor's memory allows one.

TMA wants 16-byte aligned bases and strides, a width of stride 1, and real strides: an expanded tensor has none. A
descriptor may end before the tensor does; what lies behind is read as 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from attn_backends.backends.triton_tiled.operands import Strides

ALIGNMENT = 16  # bytes


def describable(tensor: torch.Tensor, strides: Strides, shape: tuple[int, int, int, int]) -> bool:
    """Whether a descriptor of this tensor exists; shape and strides in the order batch, head, token, width."""
    if strides[3] != 1 or tensor.data_ptr() % ALIGNMENT or 0 in shape:
        return False
    size = tensor.element_size()
    outer = zip(strides[:3], shape[:3], strict=True)
    return all(extent == 1 or (stride > 0 and stride * size % ALIGNMENT == 0) for stride, extent in outer)


def describe(tensor: torch.Tensor, strides: Strides, shape: tuple[int, int, int, int], rows: int, width: int) -> Any:
    """A descriptor over [batch, head, token, width] with blocks of `rows` tokens."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    unit = ALIGNMENT // tensor.element_size()
    legal = [unit if extent == 1 else stride for stride, extent in zip(strides[:3], shape[:3], strict=True)]
    return TensorDescriptor(tensor, list(shape), [*legal, 1], [1, 1, rows, width])
