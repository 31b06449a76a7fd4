"""Compiling paged_decode's kernels for a GPU that is not here: what a call would launch, and what that costs.

    python -m tests.backends.paged_decode_compiling [--all]      prints JSON, one object per kernel

Of the calls of `CALLS` that `part` names, or of all.

The launch is given tensors on the meta device, which have no contents: it fails where anything reads a length on the host.
Triton's hook takes what is about to be compiled. Not with TRITON_INTERPRET=1, under which there is nothing to compile.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.driver import driver

from attn_backends.backends.paged_decode import launch as launching
from attn_backends.backends.paged_decode.configs import Config, configs
from attn_backends.backends.paged_decode.operands import operands_of
from attn_backends.call import Call

FORMATS = {
    "dense": None,
    "scaled-fp8-e4m3": torch.float8_e4m3fn,
    "scaled-fp8-e5m2": torch.float8_e5m2,
    "scaled-int8": torch.int8,
}
ARCH = 90

# Name -> arguments of `call_of`: every row of configs.toml with its costliest features.
CALLS: dict[str, dict[str, Any]] = {
    "decode": {},
    "decode, heads of 64": {"width": 64},
    "decode of few": {"batch": 4},
    "decode of few, everything": {"batch": 4, "everything": True},
    "decode of one, heads of 64": {"batch": 1, "width": 64},
    "decode of few, heads of 64": {"batch": 4, "width": 64},
    "decode of many, heads of 64": {"batch": 64, "width": 64},
    "decode of many": {"batch": 64},
    "decode of many, everything": {"batch": 64, "everything": True},
    "fp8": {"form": "scaled-fp8-e4m3"},
    "fp8, many": {"form": "scaled-fp8-e4m3", "batch": 64},
    "int8 per token, many, everything": {
        "form": "scaled-int8", "granularity": "per_token_head", "everything": True, "batch": 64
    },
    "V in fp8": {"form": "scaled-fp8-e4m3", "dense_k": True},
    "V in int8 per token, everything": {
        "form": "scaled-int8", "granularity": "per_token_head", "dense_k": True, "everything": True
    },
    "fp8, heads of 64": {"form": "scaled-fp8-e4m3", "width": 64},
    "e5m2 per channel": {"form": "scaled-fp8-e5m2", "granularity": "per_channel"},
    "int8 per token": {"form": "scaled-int8", "granularity": "per_token_head"},
    "fp8 per token, everything": {"form": "scaled-fp8-e4m3", "granularity": "per_token_head", "everything": True},
    "everything": {"everything": True},
    "new tokens": {"new": 64},
    "new tokens, everything": {"new": 64, "everything": True},
    "new tokens, int8 per token, everything": {
        "new": 64, "form": "scaled-int8", "granularity": "per_token_head", "everything": True
    },
    "new tokens, heads of 64": {"new": 64, "width": 64},
    "new tokens, heads of 64, everything": {"new": 64, "width": 64, "everything": True},
    "batch invariant": {"invariant": True},
    "packed": {"new": 64, "packed": True},
    "packed, everything": {"new": 64, "packed": True, "everything": True},
    "packed, fp8": {"new": 64, "packed": True, "form": "scaled-fp8-e4m3"},
    "packed, heads of 256": {"new": 64, "packed": True, "width": 256, "everything": True},
    "packed, fp8, heads of 256": {"new": 64, "packed": True, "width": 256, "form": "scaled-fp8-e4m3"},
    "packed, 192 and 128": {"new": 64, "packed": True, "width": 192, "width_v": 128},
    "packed, a latent": {"new": 4, "packed": True, "latent": 16},
    "float32": {"dtype": torch.float32},
    "float32, fp8 per token, everything": {
        "dtype": torch.float32, "form": "scaled-fp8-e4m3", "granularity": "per_token_head", "everything": True
    },
    "heads of 256": {"width": 256},
    "heads of 256, everything": {"width": 256, "everything": True},
    "fp8, heads of 256": {"form": "scaled-fp8-e4m3", "width": 256},
    "int8 per token, heads of 256, everything": {
        "form": "scaled-int8", "granularity": "per_token_head", "width": 256, "everything": True
    },
    "new tokens, heads of 256": {"width": 256, "new": 64},
    "new tokens, heads of 256, everything": {"width": 256, "new": 64, "everything": True},
    "new tokens, int8 per token, heads of 256, everything": {
        "form": "scaled-int8", "granularity": "per_token_head", "width": 256, "new": 64, "everything": True
    },
    "float32, heads of 256, everything": {"dtype": torch.float32, "width": 256, "everything": True},
    "192 and 128": {"width": 192, "width_v": 128},
    "192 and 128, everything": {"width": 192, "width_v": 128, "everything": True},
    "fp8 per channel, 192 and 128": {
        "form": "scaled-fp8-e4m3", "granularity": "per_channel", "width": 192, "width_v": 128
    },
    "new tokens, 192 and 128": {"width": 192, "width_v": 128, "new": 64},
    "a latent, 16 heads": {"latent": 16},
    "a latent, 16 heads, everything": {"latent": 16, "everything": True},
    "a latent, 128 heads": {"latent": 128},
    "a latent, 128 heads, everything": {"latent": 128, "everything": True},
}  # fmt: skip

# Those whose e4m3 becomes float16 two at a time, V's bytes read in pairs.
PAIRED = ("fp8", "fp8, many", "fp8, heads of 64", "fp8 per token, everything")


def call_of(
    *, form: str = "dense", granularity: str = "per_tensor", dense_k: bool = False, dtype: torch.dtype = torch.bfloat16,
    width: int = 128, width_v: int | None = None, latent: int = 0, new: int = 1, batch: int = 8, everything: bool = False,
    invariant: bool = False, packed: bool = False,
) -> Call:  # fmt: skip
    """Sequences of 2048 tokens in pages of 16, 32 heads on 8; tensors without contents.

    latent: so many heads on one of 576 columns, whose first 512 are V
    dense_k: whether V alone is in the format
    """
    heads, kv_heads, page, columns = 32, 8, 16, 128
    if latent:
        heads, kv_heads, width, width_v = latent, 1, 576, 512
    width_v = width_v or width
    pages = batch * columns

    def empty(*shape: int, kind: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=kind, device="meta")

    k_form = "dense" if dense_k else form
    k = empty(pages, page, kv_heads, width, kind=FORMATS[k_form] or dtype)
    v = empty(pages, page, kv_heads, width_v, kind=FORMATS[form] or dtype)
    if latent:
        v = k[..., :width_v]

    def scale(form: str, columns: int) -> torch.Tensor | None:
        shapes = {"per_tensor": (1,), "per_channel": (kv_heads, columns), "per_token_head": (pages, page, kv_heads)}
        return None if form == "dense" else empty(*shapes[granularity], kind=torch.float32)

    def applied(form: str) -> str:
        return "none" if form == "dense" else granularity

    rows: tuple[int, ...] = (batch * new,) if packed else (batch, new)
    lse = (heads, *rows) if packed else (batch, heads, new)
    q = empty(*rows, heads, width, kind=dtype)
    extras: dict[str, Any] = {}
    if everything:
        extras = {
            "softcap": 30.0, "window_left": 500, "sinks": empty(heads, kind=torch.float32),
            "alibi_slopes": empty(batch, heads, kind=torch.float32), "lse": empty(*lse, kind=torch.float32),
        }  # fmt: skip
    if packed:
        extras |= {"layout": "thd", "cu_seqlens_q": empty(batch + 1, kind=torch.int32)}
    return Call(
        q=q, k=k, v=v, out=empty(*rows, heads, width_v, kind=dtype), causal=True, softmax_scale=0.1,
        seq_lens=empty(batch, kind=torch.int32), block_table=empty(batch, columns, kind=torch.int32),
        k_format=k_form, v_format=form, k_descale=scale(k_form, width), v_descale=scale(form, width_v),
        k_granularity=applied(k_form), v_granularity=applied(form),
        max_seqlen_q=new, max_seqlen_k=columns * page, batch_invariant=invariant, **extras,
    )  # fmt: skip


def part() -> list[str]:
    """Calls enough for every row of configs.toml, with every feature where such a call is there; and those of `PAIRED`."""
    served: dict[Config, str] = {}
    for name in sorted(CALLS, key=lambda name: CALLS[name].get("everything", False)):
        call = call_of(**CALLS[name])
        with _standing_in(GPUTarget("cuda", ARCH, 32)):
            served[launching.chosen(call, operands_of(call).sizes)] = name
    return list(dict.fromkeys([*served.values(), *PAIRED]))


def compiled(call: Call) -> Iterator[dict[str, Any]]:
    """What every kernel of the call costs on sm_90: registers and bytes of stack per thread, shared bytes per block."""
    target = GPUTarget("cuda", ARCH, 32)
    sizes = operands_of(call).sizes
    with _standing_in(target):
        config = launching.chosen(call, sizes)
        taken = _launches(call)
    for kernel, given in taken:
        source = ASTSource(kernel, given["signature"], given["constants"], given["configs"][0])
        options = {name: given[name] for name in ("num_warps", "num_stages")}
        if config.maxnreg and kernel.__name__ == "attend_split":
            options["maxnreg"] = config.maxnreg
        binary = triton.compile(source, target=target, options=options)
        registers, stack = _resources(binary.asm["cubin"])
        yield {
            "kernel": kernel.__name__, "row": configs().index(config), "registers": registers, "stack": stack, "shared": binary.metadata.shared,
            "allowed": config.shared, "conversions": len(re.findall(r"F2FP\.F16\.E4M3", binary.asm["sass"])),
            "byte_loads": len(re.findall(r"LDS\.[US]8", binary.asm["sass"])),
            "in_registers": config.registers, "async_copies": binary.asm["sass"].count("LDGSTS"),
            "waited_for": len(re.findall(r"%[kv]_(?:tile|rest)\w* = tt\.load", binary.asm["ttgir"])),
        }  # fmt: skip


def _launches(call: Call) -> list[tuple[Any, dict[str, Any]]]:
    found: list[tuple[Any, dict[str, Any]]] = []

    def take(*, fn: Any, compile: dict[str, Any], **_more: Any) -> bool:  # noqa: A002  # Triton's name
        found.append((fn.jit_function, compile))
        return True  # compile nothing

    with knobs.runtime.scope():
        knobs.runtime.jit_cache_hook = take
        launching.launch(call, operands_of(call))
    return found


class _StandIn:
    """The little of a driver that Triton asks before it compiles."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> str:
        return "a pretended GPU"

    def get_current_stream(self, _device: str) -> int:
        return 0


@contextmanager
def _standing_in(target: Any) -> Iterator[None]:
    real = driver._active
    driver.set_active(_StandIn(target))
    try:
        with (
            mock.patch.object(launching, "architecture", return_value=ARCH),
            mock.patch.object(launching, "multiprocessors", return_value=132),
        ):
            yield
    finally:
        driver._active = real


def _resources(cubin: bytes) -> tuple[int, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(path)]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", listing)
    if found is None:
        raise RuntimeError(f"no resources in what the compiler printed: {listing[-500:]}")
    return int(found[1]), int(found[2])


def main() -> None:
    """One JSON object per kernel."""
    for name in CALLS if sys.argv[1:] == ["--all"] else part():
        for line in compiled(call_of(**CALLS[name])):
            print(json.dumps({"call": name, **line}), flush=True)


if __name__ == "__main__":
    main()
