"""Compiling the kernels for a GPU that is not here: what a launcher would launch, compiled, and what the result costs.

The adapter serves a call on meta tensors while Triton's own hook takes what it is about to compile, so that signatures,
constants and alignment are those of a real launch. Nothing runs on a device. For tests and `compile_table`; not with
TRITON_INTERPRET=1, under which there is nothing to compile.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.driver import driver

from attn_backends.backends.triton_tiled import adapter, choice
from attn_backends.call import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel as Triton was about to compile it: argument types, constants, what is known of alignment, options."""

    kernel: Any
    signature: dict[str, Any]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]
    options: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compiled kernel. Bytes: `stack` per thread (spilled registers), `shared` per block. Seconds: of compiling.

    registers, stack: None where no tool here reads them (AMD); instructions: the machine code, where asked for.
    """

    registers: int | None
    stack: int | None
    shared: int
    seconds: float
    instructions: str = ""


def target_of(arch: int) -> Any:
    """Triton's name for a CUDA architecture, major * 10 + minor."""
    return GPUTarget("cuda", arch, 32)


AMD = GPUTarget("hip", "gfx942", 64)


def launches_of(call: Call, target: Any) -> list[Launch]:
    """What the call and its backward launch, in order, as specialised on the target; nothing is compiled or run."""
    found: list[Launch] = []

    def take(*, fn: Any, compile: dict[str, Any], **_more: Any) -> bool:  # noqa: A002  # Triton's name
        found.append(
            Launch(
                kernel=fn.jit_function,
                signature=compile["signature"],
                constants=compile["constants"],
                attributes=compile["configs"][0],
                options={name: compile[name] for name in ("num_warps", "num_stages")},
            )
        )
        return True  # compile nothing

    with _standing_in(target), knobs.runtime.scope():
        knobs.runtime.jit_cache_hook = take
        adapter.run(call)
        if call.needs_backward:
            adapter.backward(call, torch.empty_like(call.out), None)
    return found


def compiled(launched: Launch, target: Any, *, instructions: bool = False, afresh: bool = False) -> Compiled:
    """Compile, through Triton's cache on disk unless `afresh`. Raises what Triton's compiler raises."""
    source = ASTSource(launched.kernel, launched.signature, launched.constants, launched.attributes)
    begin = time.perf_counter()
    with knobs.compilation.scope():
        if afresh:
            knobs.compilation.always_compile = True
        kernel = triton.compile(source, target=target, options=launched.options)
    seconds = time.perf_counter() - begin
    registers, stack = _resources(kernel.asm["cubin"]) if target.backend == "cuda" else (None, None)
    return Compiled(
        registers=registers,
        stack=stack,
        shared=kernel.metadata.shared,
        seconds=seconds,
        instructions=kernel.asm["sass"] if instructions else "",
    )


class _StandIn:
    """The little of a driver that Triton asks before it compiles."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> str:
        return f"a pretended {self._target.backend} {self._target.arch}"

    def get_current_stream(self, _device: str) -> int:
        return 0


@contextmanager
def _standing_in(target: Any) -> Iterator[None]:
    """Make Triton and the choice of tiles believe in the target."""
    arch = target.arch if target.backend == "cuda" else 0
    real = driver._active
    driver.set_active(_StandIn(target))
    try:
        with mock.patch.object(choice, "architecture", lambda _device: arch):
            yield
    finally:
        driver._active = real


def _resources(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of stack) per thread, as the assembler noted them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(path)]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603  # Triton's tool
    found = re.search(r"REG:(\d+) STACK:(\d+)", listing)
    if found is None:
        raise RuntimeError(f"cuobjdump names no registers: {listing}")
    return int(found[1]), int(found[2])
