"""Compiling the kernel for a GPU that is not here: what a call would launch, compiled, and what the result costs.

The adapter serves a call on meta tensors while Triton's own hook takes what it is about to compile, so that signature,
constants and options are those of a real launch. Nothing runs on a device.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime.driver import driver

from attn_backends.backends.hopper import adapter, launch
from attn_backends.backends.hopper.configs import Config
from attn_backends.call import Call

TARGET = GPUTarget("cuda", 90, 32)
MULTIPROCESSORS = 132
# Matrix products of a warpgroup, copies by TMA in and out, registers handed over, and spills.
INSTRUCTIONS = ("HGMMA", "UTMALDG", "UTMASTG", "USETMAXREG", "LDL", "STL")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The kernel as Triton was about to compile it: argument types, constants, what is known of alignment, options."""

    kernel: Any
    signature: dict[str, Any]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compiled kernel. Bytes: `stack` per thread (spilled registers), `shared` per block; `counts` of `INSTRUCTIONS`."""

    registers: int
    stack: int
    shared: int
    counts: dict[str, int]


def meta_call(
    head_dim: int,
    *,
    causal: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    batch: int = 2,
    heads: tuple[int, int] = (4, 2),
    seq: tuple[int, int] = (1000, 1000),
    layout: str = "bshd",
    **fields: Any,
) -> Call:
    """A call on tensors without memory; heads of q and of k, queries and keys."""

    def tensor(tokens: int, count: int) -> torch.Tensor:
        shape = (batch, tokens, count, head_dim) if layout == "bshd" else (batch, count, tokens, head_dim)
        return torch.empty(shape, dtype=dtype, device="meta")

    q, k = tensor(seq[0], heads[0]), tensor(seq[1], heads[1])
    given = {"q": q, "k": k, "v": torch.empty_like(k), "out": torch.empty_like(q), "softmax_scale": head_dim**-0.5}
    return Call(layout=layout, causal=causal, **{**given, **fields})


def launch_of(call: Call, config: Config | None = None) -> Launch:
    """What the call launches, specialised on sm_90; nothing is compiled or run.

    config: a pipeline to use in place of the one that is shipped.
    """
    found: list[Launch] = []

    def take(*, fn: Any, compile: dict[str, Any], **_more: Any) -> bool:  # noqa: A002  # Triton's name
        found.append(
            Launch(
                kernel=fn.jit_function,
                signature=compile["signature"],
                constants=compile["constants"],
                attributes=compile["configs"][0],
                options=_options(compile["specialization_data"]),
            )
        )
        return True  # compile nothing

    real = driver._active
    driver.set_active(_StandIn())
    try:
        with mock.patch.object(launch, "multiprocessors", return_value=MULTIPROCESSORS), knobs.runtime.scope():
            knobs.runtime.jit_cache_hook = take
            adapter.run(call, config)
    finally:
        driver._active = real
    (only,) = found
    return only


def compiled(launch: Launch) -> Compiled:
    """Compile, through Triton's cache on disk. Raises what Triton's compiler raises."""
    source = GluonASTSource(launch.kernel, launch.signature, launch.constants, launch.attributes)
    kernel = triton.compile(source, target=TARGET, options=launch.options)
    found = re.search(
        r"REG:(\d+) STACK:(\d+)", _asked(kernel.asm["cubin"], knobs.nvidia.cuobjdump, "--dump-resource-usage")
    )
    if found is None:
        raise RuntimeError("no resources in what the assembler noted")
    listing = _asked(
        kernel.asm["cubin"], knobs.nvidia.nvdisasm, "--print-code"
    )  # Triton's own listing may be cut short
    words = Counter(re.findall(rf"\b({'|'.join(INSTRUCTIONS)})\b", listing))
    return Compiled(
        registers=int(found[1]),
        stack=int(found[2]),
        shared=kernel.metadata.shared,
        counts={name: words[name] for name in INSTRUCTIONS},
    )


def _options(specialization: str) -> dict[str, Any]:
    """The options that the launch gives; Triton's hook has the register bound in this record alone."""
    given = json.loads(specialization)["options"]
    return {name: given[name] for name in ("num_warps", "maxnreg")}


class _StandIn:
    """The little of a driver that Triton asks before it compiles."""

    def get_current_target(self) -> Any:
        return TARGET

    def get_current_device(self) -> str:
        return "a pretended sm_90"

    def get_current_stream(self, _device: str) -> int:
        return 0


def _asked(cubin: bytes, tool: Any, what: str) -> str:
    """What one of Triton's tools prints about a compiled kernel."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        return subprocess.run([tool.path, what, str(path)], capture_output=True, text=True, check=True).stdout  # noqa: S603
