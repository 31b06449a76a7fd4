"""Stands for CUDA's driver, for tests without a GPU: takes a launch and reads it as the driver does, from the documented layout."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext

import torch

STREAM = 5
TYPES = {"q": ctypes.c_int64, "f": ctypes.c_float, "?": ctypes.c_bool}


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = (
        ("shape", ctypes.c_uint * 7),  # gridDimX .. Z, blockDimX .. Z, sharedMemBytes
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attributes_count", ctypes.c_uint),
    )


class FakeDriver:
    """What the last launch said; parameters are read when they are asked for, before the next one."""

    def __init__(self, monkeypatch, code=0):
        from attn_backends.numba_driver import driver, plan

        self.code, self.launches = code, 0
        monkeypatch.setattr(driver, "library", lambda: self)
        monkeypatch.setattr(driver, "ensure_context", lambda device: None)
        monkeypatch.setattr(plan.torch.cuda, "device", lambda device: nullcontext())
        monkeypatch.setattr(
            torch._C, "_cuda_getDevice", lambda: -1, raising=False
        )  # the number of a CPU tensor's device
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: STREAM, raising=False)

    def cuLaunchKernelEx(self, config, kernel, places, extra):  # noqa: N802  # the driver's name
        found = LaunchConfig.from_address(config.value)
        self.shape, self.stream, self.kernel = list(found.shape), found.stream, kernel.value
        self._places = places.value
        self.launches += 1
        assert (extra, found.attributes, found.attributes_count) == (None, None, 0)
        return self.code

    def cuGetErrorString(self, code, text):  # noqa: N802  # the driver's name
        text._obj.value = b"an illegal memory access was encountered"
        return 0

    def read(self, kinds):
        """The parameters, by letters of `struct`."""
        places = (ctypes.c_void_p * len(kinds)).from_address(self._places)
        return [TYPES[kind].from_address(place).value for kind, place in zip(kinds, places, strict=True)]
