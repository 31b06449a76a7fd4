"""`Launch`: a kernel with everything but addresses and stream. A call of it writes those and asks the driver.

All lies in one piece of memory: CUlaunchConfig, whose second half is the stream and what follows it, then a cell of 8 bytes
per parameter, addresses first, so that one `pack_into` writes all that changes. A table tells the driver where each
parameter is; it copies them before it returns. One thread uses a Launch.

https://docs.nvidia.com/cuda/cuda-driver-api/structCUlaunchConfig.html
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable
from functools import cache
from itertools import count
from typing import Any

import torch

from attn_backends.numba_driver import driver

ADDRESS = "P"  # the kind of a parameter that is known at the call; others: letters of `struct`
ARCHITECTURES = ((7, 5), (8, 0), (9, 0), (10, 0), (12, 0))
SHAPE = struct.Struct("=7I4x")  # CUlaunchConfig: grid, block, bytes of dynamic shared memory
LATER = "qqq"  # stream; attributes, and their number: none
CELLS = SHAPE.size + struct.calcsize(f"={LATER}")
CELL = 8


class Launch:
    """One kernel on one device. `kinds`: one letter per parameter of the kernel; `values`: of all but the addresses."""

    __slots__ = ("_arguments", "_device", "_drive", "_memory", "_pack", "_table")

    def __init__(
        self, kernel: int, grid: tuple[int, int, int], threads: tuple[int, int], shared_bytes: int, device: int,
        kinds: str, values: Iterable[Any],
    ) -> None:  # fmt: skip
        places, now, later = _layout(kinds)
        self._device = device
        self._memory = ctypes.create_string_buffer(CELLS + CELL * len(kinds))
        start = ctypes.addressof(self._memory)
        self._table = (ctypes.c_void_p * len(kinds))(*[start + place for place in places])
        SHAPE.pack_into(self._memory, 0, *grid, *threads, 1, shared_bytes)
        now.pack_into(self._memory, CELLS + CELL * kinds.count(ADDRESS), *values)
        self._pack = later.pack_into
        self._arguments = (*map(ctypes.c_void_p, (start, kernel, ctypes.addressof(self._table))), None)
        self._drive = driver.library().cuLaunchKernelEx

    def __call__(self, *addresses: int) -> None:
        """On torch's current stream of the device, which is the current one."""
        stream = torch._C._cuda_getCurrentRawStream(self._device)
        self._pack(self._memory, SHAPE.size, stream, 0, 0, *addresses)
        said = self._drive(*self._arguments)
        if said:
            driver.check(said)


@cache
def _layout(kinds: str) -> tuple[list[int], struct.Struct, struct.Struct]:
    """Where each parameter is in memory; how those are packed that are known before the call, and the addresses."""
    addresses = kinds.count(ADDRESS)
    first, others = count(), count(addresses)
    places = [CELLS + CELL * next(first if kind == ADDRESS else others) for kind in kinds]
    padded = [f"{kind}{CELL - struct.calcsize('=' + kind)}x" for kind in kinds if kind != ADDRESS]
    return places, struct.Struct("=" + "".join(padded)), struct.Struct(f"={LATER}{addresses}q")


def architecture(device: int) -> tuple[int, int]:
    """What to compile for: the newest that the device runs."""
    capability = torch.cuda.get_device_capability(device)
    return max(known for known in ARCHITECTURES if known <= capability)
