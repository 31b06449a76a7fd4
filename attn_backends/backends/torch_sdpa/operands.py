"""Operands as a kernel wants them: memory it may read, widths it knows, one K and V per query head, a positive scale.

Every function returns its argument where nothing is to be done, and says so beforehand through a predicate that
`conversions` asks too. Nothing here looks at values.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

_VECTOR_BYTES = 16
_ALLOCATION_BYTES = 64


def is_canonical(tensor: torch.Tensor) -> bool:
    """Contiguous and aligned as a fresh allocation: BLAS may round by memory layout, so equal values need equal memory."""
    return tensor.is_contiguous() and tensor.data_ptr() % _ALLOCATION_BYTES == 0


def is_vectorised(tensor: torch.Tensor) -> bool:
    """Whether every row can be read in vectors of 16 bytes, at no stride of 0; dims of size 1 do not count."""
    size = tensor.element_size()
    if tensor.data_ptr() % _VECTOR_BYTES or (tensor.shape[-1] > 1 and tensor.stride(-1) != 1):
        return False
    return all(
        count == 1 or (step > 0 and step * size % _VECTOR_BYTES == 0)
        for count, step in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True)
    )


def canonical(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in memory that depends on the shape alone."""
    return tensor.contiguous() if is_canonical(tensor) else tensor.clone(memory_format=torch.contiguous_format)


def vectorised(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in memory that kernels read 16 bytes at a time, with orderly strides on dims of size 1."""
    if not is_vectorised(tensor):
        return tensor.clone(memory_format=torch.contiguous_format)
    return _orderly_units(tensor)


def _orderly_units(tensor: torch.Tensor) -> torch.Tensor:
    """Kernels check strides that never matter: give dims of size 1 one that is legal for any head width and dtype."""
    shape, strides = tensor.shape, tensor.stride()
    if 1 not in shape:
        return tensor
    orderly = [1 if shape[-1] == 1 else strides[-1]]
    for count, step in zip(reversed(shape[:-1]), reversed(strides[:-1]), strict=True):
        orderly.append(step if count != 1 else _VECTOR_BYTES * shape[-1])
    orderly.reverse()
    return tensor if tuple(orderly) == strides else tensor.as_strided(shape, orderly)


def padded_width(width: int, multiple: int) -> int:
    """The next multiple."""
    return -(-width // multiple) * multiple


def pad_width(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Zero columns up to `width`: they add nothing to a dot product, and the columns of V are cut off again."""
    return tensor if tensor.shape[-1] == width else pad(tensor, (0, width - tensor.shape[-1]))


def repeat_kv(tensor: torch.Tensor, ratio: int) -> torch.Tensor:
    """[B, Hkv, S, D] -> [B, Hkv * ratio, S, D]: query head h reads KV head h // ratio."""
    return tensor if ratio == 1 else tensor.repeat_interleave(ratio, dim=1)


def sum_groups(grad: torch.Tensor, ratio: int) -> torch.Tensor:
    """The gradient of `repeat_kv`, added up in at least float32."""
    if ratio == 1:
        return grad
    wide = torch.float64 if grad.dtype == torch.float64 else torch.float32
    batch, heads, seq, width = grad.shape
    return grad.reshape(batch, heads // ratio, ratio, seq, width).sum(2, dtype=wide).to(grad.dtype)


def sign_of(scale: float) -> float:
    """What moves from the scale into q: kernels multiply hidden scores of -inf by the scale, so it has to be positive."""
    return float((scale > 0) - (scale < 0))


def signed(tensor: torch.Tensor, sign: float) -> torch.Tensor:
    """Exact: times 1, -1 or 0."""
    return tensor if sign == 1 else tensor * sign
