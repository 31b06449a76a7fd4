"""The kernel on a device, compiled and loaded once; and its launch for one kind of call.

numba passes an array as meminfo and parent, which are null here, the number of its elements and their size, its address,
its shape, and its strides in bytes, each a parameter of its own.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from attn_backends.backends.numba_tiled.kernel import BLOCKS, XS, YS, kernel_for, shared_bytes
from attn_backends.numba_driver import driver, ptx
from attn_backends.numba_driver.launch import ADDRESS, Launch, architecture
from attn_backends.numba_driver.toolchain import types

if TYPE_CHECKING:
    from attn_backends.backends.numba_tiled.operands import Operands

RANKS = (4, 4, 4, 4, 3, 1, 1)
KINDS = "".join("qqqq" + ADDRESS + "q" * 2 * rank for rank in RANKS) + "ffqq?"
NAMES = {torch.float32: "float32", torch.float16: "float16"}
ABSENT = ((0, 0, 0), (1,), (1,))  # shapes of an LSE and starts that are not there


def launch_of(operands: Operands, device: int) -> Launch:
    """For addresses of any call that has these operands."""
    values: list[float] = []
    for tensor, shape in zip(operands.tensors, (None,) * 4 + ABSENT, strict=True):
        values += array(tensor.shape, tensor.stride(), tensor.itemsize) if tensor is not None else absent(shape)
    q, written = operands.tensors[0], operands.tensors[3]
    assert q is not None
    assert written is not None
    kernel = loaded(operands.width, NAMES[q.dtype], NAMES[written.dtype], device)
    return Launch(
        kernel, operands.grid, (XS, YS), shared_bytes(operands.width), device, KINDS, (*values, *operands.numbers)
    )


def array(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> list[int]:
    """A tensor as numba's kernels take one, but for its address."""
    return [0, 0, math.prod(shape), itemsize, *shape, *(itemsize * stride for stride in strides)]


def absent(shape: tuple[int, ...] | None) -> list[int]:
    """An array that the kernel asks for its shape alone."""
    assert shape is not None
    return array(shape, (0,) * len(shape), 4)


@cache
def loaded(width: int, read: str, written: str, device: int) -> int:
    """In the current context, which is the device's."""
    arch = architecture(device)
    what = (width, read, written, arch)
    text = ptx.kept(__package__, what, lambda: compiled(*what))
    return driver.load(text, ptx.entry_of(text), shared_bytes(width))


def compiled(width: int, read: str, written: str, arch: tuple[int, int]) -> str:
    """The kernel's PTX, made now, for tensors of any strides."""
    kinds = (read, read, read, written, "float32", "int32", "int32")
    arrays = (types.Array(getattr(types, kind), rank, "A") for kind, rank in zip(kinds, RANKS, strict=True))
    numbers = (types.float32, types.float32, types.int64, types.int64, types.boolean)
    kernel: Any = kernel_for(width).py_func
    return ptx.compiled(kernel, (*arrays, *numbers), arch, XS * YS, BLOCKS[width])
