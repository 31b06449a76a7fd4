"""A tensor's memory walked with other strides than its own, as a kernel does that takes them for granted."""

from __future__ import annotations

import torch


def reread(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor's memory walked with other strides, inside its own storage."""
    if not tensor.numel():
        return tensor
    at = torch.zeros(tensor.shape, dtype=torch.int64)
    for dim, (size, step) in enumerate(zip(tensor.shape, strides, strict=True)):
        at = at + (torch.arange(size) * step).reshape(-1, *(1,) * (tensor.dim() - dim - 1))
    codes = tensor if tensor.element_size() > 1 else tensor.view(torch.uint8)
    length = codes.untyped_storage().nbytes() // codes.element_size()
    whole = codes.as_strided((length,), (1,), 0)
    return whole[(at + codes.storage_offset()) % length].view(tensor.dtype)


def packed_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor of which nothing lies between two elements."""
    steps = [1]
    for size in reversed(shape[1:]):
        steps.insert(0, steps[0] * size)
    return tuple(steps)
