"""A call in numba's CUDA simulator, where a CPU's memory stands for the GPU's, of any strides. Imported there alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from attn_backends.backends.numba_tiled.kernel import XS, YS, kernel_for, shared_bytes
from attn_backends.backends.numba_tiled.launch import ABSENT, NAMES
from attn_backends.backends.numba_tiled.operands import operands_of
from attn_backends.numba_driver.toolchain import imported, types

if TYPE_CHECKING:
    from attn_backends.call import Call

_Array = imported("numba.cuda.simulator.cudadrv.devicearray").FakeCUDAArray


def simulate(call: Call) -> None:
    """What `run` does."""
    there = call.out.dtype in NAMES
    out = call.out if there else torch.empty(call.out.shape, dtype=torch.float32)
    if call.cu_seqlens_q is not None:
        out.zero_()
        if call.lse is not None:
            call.lse.fill_(float("-inf"))
    operands = operands_of(call, out)
    if operands is not None:
        arrays = [_array(*pair) for pair in zip(operands.tensors, (None,) * 4 + ABSENT, strict=True)]
        scale, softcap, *rest = operands.numbers
        kernel = kernel_for(operands.width)[operands.grid, (XS, YS), 0, shared_bytes(operands.width)]
        kernel(*arrays, types.float32(scale), types.float32(softcap), *rest)
    if not there:
        call.out.copy_(out)


def _array(tensor: torch.Tensor | None, shape: tuple[int, ...] | None) -> Any:
    if tensor is None:
        assert shape is not None
        tensor = torch.zeros(shape, dtype=torch.int32)
    return _Array(tensor.numpy())
