"""A kernel on a device, compiled and loaded once; and its launch for one kind of call."""

from __future__ import annotations

from functools import cache
from typing import Any

from attn_backends.backends.numba_mma.config import Config
from attn_backends.backends.numba_mma.intrinsic import intrinsics
from attn_backends.backends.numba_mma.kernel import STAGES, kernel_of
from attn_backends.backends.numba_mma.toolchain import cuda, types
from attn_backends.numba_driver import driver, ptx
from attn_backends.numba_driver.launch import ADDRESS, Launch, architecture

ADDRESSES, SIZES, REALS = 7, 22, 2  # parameters of the kernel, in its order: int64, int64, float32
KINDS = ADDRESS * ADDRESSES + "q" * SIZES + "f" * REALS


def launch_of(config: Config, device: int, grid: tuple[int, int, int], operands: tuple[Any, ...]) -> Launch:
    """For addresses of any call that has these operands."""
    kernel, values = loaded(config, device), operands[ADDRESSES:]
    return Launch(kernel, grid, (config.threads, 1), config.shared_bytes, device, KINDS, values)


@cache
def loaded(config: Config, device: int) -> int:
    """In the current context, which is the device's."""
    arch = architecture(device)
    text = ptx.kept(__package__, (config, arch), lambda: compiled(config, arch))
    return driver.load(text, ptx.entry_of(text), config.shared_bytes)


def compiled(config: Config, arch: tuple[int, int]) -> str:
    """The kernel's PTX, made now."""
    kernel = kernel_of(config, intrinsics(STAGES, config), cuda, types.float32, types.int32)
    signature = (*[types.int64] * (ADDRESSES + SIZES), *[types.float32] * REALS)
    return ptx.compiled(kernel, signature, arch, config.threads, config.blocks)
