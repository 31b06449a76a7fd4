"""`launch`: parameters into one block of memory, and the driver called; a few microseconds.

A thread has its own block, whose addresses are known from the start. The driver copies it before it returns.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from functools import cache
from typing import Any

import torch

from attn_backends.backends.numba_mma import driver
from attn_backends.backends.numba_mma.compiling import ADDRESSES, REALS, SIZES, entry_of, ptx_of
from attn_backends.backends.numba_mma.config import Config

LONGS = ADDRESSES + SIZES
PARAMETERS = struct.Struct(f"={LONGS}q{REALS}f")
OFFSETS = (*range(0, 8 * LONGS, 8), *range(8 * LONGS, PARAMETERS.size, 4))
ARCHITECTURES = ((8, 0), (9, 0), (10, 0), (12, 0))


class _Block(threading.local):
    """Memory for the parameters, and where each of them is."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(PARAMETERS.size)
        start = ctypes.addressof(self.memory)
        self._places = (ctypes.c_void_p * len(OFFSETS))(*(start + offset for offset in OFFSETS))
        self.places = ctypes.addressof(self._places)
        self.ready = False  # whether the thread has a context


_BLOCK = _Block()


def launch(config: Config, device: int, grid: tuple[int, int, int], operands: tuple[Any, ...]) -> None:
    """On torch's current stream of the current device, which is `device`."""
    block = _BLOCK
    if not block.ready:
        driver.ensure_context(device)
        block.ready = True
    kernel = loaded(config, device)
    PARAMETERS.pack_into(block.memory, 0, *operands)
    stream = torch._C._cuda_getCurrentRawStream(device)
    said = driver.library().cuLaunchKernel(
        kernel, *grid, config.threads, 1, 1, config.shared_bytes, stream, block.places, None
    )
    if said:
        driver.check(said)


@cache
def loaded(config: Config, device: int) -> int:
    """The kernel, compiled and loaded once per device."""
    with torch.cuda.device(device):
        driver.ensure_context(device)
        ptx = ptx_of(config, architecture(torch.cuda.get_device_capability(device)))
        return driver.load(ptx, entry_of(ptx), config.shared_bytes)


def architecture(capability: tuple[int, int]) -> tuple[int, int]:
    """What to compile for: the newest that the device runs."""
    return max(known for known in ARCHITECTURES if known <= capability)
