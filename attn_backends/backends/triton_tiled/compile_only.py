"""Compiling the kernels for a GPU that is not here: what a call would launch, compiled, and what the result costs.

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

from attn_backends.backends.triton_tiled import adapter, choice, sources, together
from attn_backends.backends.triton_tiled.configs import Config, Traits
from attn_backends.call import Call

DIRECTIONS = {
    "attention_forward": "forward", "row_terms": "rows", "key_gradients": "keys", "query_gradients": "queries",
    "bias_gradients": "bias",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel as Triton was about to compile it: argument types, constants, what is known of alignment, options.

    config: the row of configs.toml behind it; None for the kernel `rows`, which has none.
    """

    direction: str
    config: Config | None
    kernel: Any
    signature: dict[str, Any]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]
    options: dict[str, int]

    @property
    def identity(self) -> str:
        """Equal where the same code comes out."""
        return f"{self.signature} {self.constants} {self.attributes} {self.options}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compiled kernel. Bytes: `stack` per thread (spilled registers), `shared` per block. Seconds: of compiling.

    instructions: the machine code, where it was asked for.
    """

    registers: int
    stack: int
    shared: int
    seconds: float
    instructions: str = ""


def target_of(arch: str) -> Any:
    """What Triton calls "sm_90" or "gfx942" (of AMD's, those whose wavefronts have 64 threads)."""
    if arch.startswith("gfx"):
        return GPUTarget("hip", arch, 64)
    return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)


def launches_of(call: Call, target: Any) -> list[Launch]:
    """What the call and its backward launch, in order, as specialised on the target; nothing is compiled or run."""
    found: list[Launch] = []
    rows: dict[str, Config] = {}

    def choose(direction: str, call: Call, traits: Traits) -> Config:
        rows[direction] = choice.chosen(direction, call, traits)
        return rows[direction]

    def take(*, fn: Any, compile: dict[str, Any], **_more: Any) -> bool:  # noqa: A002  # Triton's name
        direction = DIRECTIONS[fn.jit_function.__name__]
        found.append(
            Launch(
                direction=direction,
                config=rows.get(direction),
                kernel=fn.jit_function,
                signature=compile["signature"],
                constants=compile["constants"],
                attributes=compile["configs"][0],
                options={name: compile[name] for name in ("num_warps", "num_stages")},
            )
        )
        return True  # compile nothing

    with _standing_in(target), mock.patch.object(sources, "chosen", choose), knobs.runtime.scope():
        knobs.runtime.jit_cache_hook = take
        adapter.run(call)
        if call.needs_backward:
            adapter.backward(call, torch.empty_like(call.out), None)
    return found


def compiled(launch: Launch, target: Any, *, instructions: bool = False, afresh: bool = False) -> Compiled:
    """Compile, through Triton's cache on disk unless `afresh`. Raises what Triton's compiler raises."""
    source = ASTSource(launch.kernel, launch.signature, launch.constants, launch.attributes)
    begin = time.perf_counter()
    with knobs.compilation.scope():
        if afresh:
            knobs.compilation.always_compile = True
        kernel = triton.compile(source, target=target, options=launch.options)
    seconds = time.perf_counter() - begin
    cuda = target.backend == "cuda"
    registers, stack = _cuda_resources(kernel.asm["cubin"]) if cuda else _amd_resources(kernel.asm["amdgcn"])
    code = (kernel.asm["sass"] if cuda else kernel.asm["amdgcn"]) if instructions else ""
    return Compiled(registers=registers, stack=stack, shared=kernel.metadata.shared, seconds=seconds, instructions=code)


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
    """Make Triton and the choice of tiles believe in the target; AMD gets the interpreter's tiles, which fit anything."""
    arch = target.arch if target.backend == "cuda" else 0
    real = driver._active
    driver.set_active(_StandIn(target))
    alone = mock.patch.object(together, "compile_side_by_side")
    try:
        with mock.patch.object(choice, "architecture", return_value=arch), alone:
            yield
    finally:
        driver._active = real


def _cuda_resources(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of stack) per thread, as the assembler noted them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(path)]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603  # Triton's tool
    return _numbers(r"REG:(\d+) STACK:(\d+)", listing)


def _amd_resources(assembly: str) -> tuple[int, int]:
    return _numbers(r"\.private_segment_fixed_size: (\d+)[\s\S]*\.vgpr_count:\s+(\d+)", assembly)[::-1]


def _numbers(pattern: str, listing: str) -> tuple[int, int]:
    found = re.search(pattern, listing)
    if found is None:
        raise RuntimeError(f"no resources in what the compiler printed: {listing[-500:]}")
    return int(found[1]), int(found[2])
