"""The few functions of CUDA's driver that load a kernel and launch it, called directly: numba's own launch takes 47 us.

https://docs.nvidia.com/cuda/cuda-driver-api
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_uint, c_void_p
from functools import cache
from typing import Any

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
LOG_BUFFER, LOG_SIZE = 5, 6  # CU_JIT_ERROR_LOG_BUFFER, .._SIZE_BYTES
LOG_BYTES = 4096
UNSUPPORTED_PTX = 222


@cache
def library() -> Any:
    """The driver."""
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuLaunchKernelEx.argtypes = [c_void_p] * 4
    cuda.cuFuncSetAttribute.argtypes = [c_void_p, c_int, c_int]
    cuda.cuCtxSetCurrent.argtypes = [c_void_p]
    cuda.cuModuleLoadDataEx.argtypes = [c_void_p, ctypes.c_char_p, c_uint, c_void_p, c_void_p]
    cuda.cuModuleGetFunction.argtypes = [c_void_p, c_void_p, ctypes.c_char_p]
    return cuda


def ensure_context(device: int) -> None:
    """A thread that has none takes the one that torch uses."""
    cuda, context = library(), c_void_p()
    check(cuda.cuCtxGetCurrent(byref(context)))
    if not context.value:
        check(cuda.cuDevicePrimaryCtxRetain(byref(context), device))
        check(cuda.cuCtxSetCurrent(context))


def load(ptx: str, name: str, shared_bytes: int) -> int:
    """The kernel as the current context knows it; it stays loaded."""
    cuda, module, function = library(), c_void_p(), c_void_p()
    log = ctypes.create_string_buffer(LOG_BYTES)
    options = (c_int * 2)(LOG_BUFFER, LOG_SIZE)
    values = (c_void_p * 2)(ctypes.addressof(log), LOG_BYTES)
    said = cuda.cuModuleLoadDataEx(byref(module), ptx.encode(), 2, options, values)
    check(said, log.value.decode(errors="replace"))
    check(cuda.cuModuleGetFunction(byref(function), module, name.encode()))
    check(cuda.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED, shared_bytes))
    assert function.value is not None
    return function.value


def check(code: int, more: str = "") -> None:
    """Raise what the driver says."""
    if code == 0:
        return
    text = ctypes.c_char_p()
    library().cuGetErrorString(code, byref(text))
    said = (text.value or b"unknown").decode()
    hint = "; install nvidia-nvvm of the driver's CUDA version (nvidia-smi shows it)" if code == UNSUPPORTED_PTX else ""
    raise RuntimeError(f"CUDA's driver says {code}, {said}{hint} {more}".rstrip())
