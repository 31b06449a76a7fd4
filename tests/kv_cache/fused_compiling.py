"""Compiling the kernels of the cache operations for a GPU that is not here, from tensors without contents.

python -m tests.kv_cache.fused_compiling      prints JSON: call -> registers and bytes of stack per thread
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from attn_backends.host import fused_merge, fused_write
from attn_backends.kv_cache import fused_gather
from tests.backends.paged_decode_compiling import _resources, _standing_in

PAGES, PAGE, HEADS, TOKENS = 1000, 16, 8, 64
SCALES = {
    "none": None, "per_tensor": (1,), "per_head": (HEADS,), "per_channel": (HEADS, 128), "per_token_head": (PAGES, PAGE, HEADS),
}  # fmt: skip


def empty(*shape: int, kind: torch.dtype) -> torch.Tensor:
    """A tensor without contents."""
    return torch.empty(shape, dtype=kind, device="meta")


def writes(stored: torch.dtype, granularity: str) -> Callable[[], None]:
    """New tokens into a cache."""
    scale = SCALES[granularity]
    target = fused_write.Target(
        rows=empty(TOKENS, HEADS, 128, kind=torch.bfloat16), cache=empty(PAGES, PAGE, HEADS, 128, kind=stored),
        descale=None if scale is None else empty(*scale, kind=torch.float32), granularity=granularity,
    )  # fmt: skip
    return lambda: fused_write.write(target, target, empty(TOKENS, kind=torch.int64))


def gathers(stored: torch.dtype, granularity: str) -> Callable[[], Any]:
    """Sequences out of a cache."""
    scale = SCALES[granularity]
    source = fused_gather.Source(
        pool=empty(PAGES, PAGE, HEADS, 128, kind=stored), granularity=granularity, dtype=torch.bfloat16,
        descale=None if scale is None else empty(*scale, kind=torch.float32),
    )  # fmt: skip
    table, starts = empty(4, 64, kind=torch.int32), empty(5, kind=torch.int32)
    return lambda: fused_gather.gather(source, source, table, starts, total=4000, longest=1000)


def merges() -> Callable[[], Any]:
    """Two states of one token per sequence."""
    out, lse = empty(32, 1, 32, 128, kind=torch.bfloat16), empty(32, 32, 1, kind=torch.float32)
    return lambda: fused_merge.merge(out, lse, out, lse)


FORMATS = {"bfloat16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "int8": torch.int8}
CALLS: dict[str, Callable[[], Any]] = {"merge": merges()}
for _form, _stored in FORMATS.items():
    for _granularity in ("none",) if _form == "bfloat16" else tuple(SCALES)[1:]:
        CALLS[f"write {_form} {_granularity}"] = writes(_stored, _granularity)
        CALLS[f"gather {_form} {_granularity}"] = gathers(_stored, _granularity)


def main() -> None:
    """One JSON object for all calls, on sm_90."""
    found: dict[str, tuple[int, int]] = {}
    target = GPUTarget("cuda", 90, 32)
    for name, call in CALLS.items():
        taken: list[tuple[Any, dict[str, Any]]] = []

        def take(*, fn: Any, compile: dict[str, Any], into: Any = taken, **_more: Any) -> bool:  # noqa: A002  # Triton's name
            into.append((fn.jit_function, compile))
            return True  # compile nothing

        with _standing_in(target), knobs.runtime.scope():
            knobs.runtime.jit_cache_hook = take
            call()
        for kernel, given in taken:
            source = ASTSource(kernel, given["signature"], given["constants"], given["configs"][0])
            binary = triton.compile(source, target=target, options={"num_warps": given["num_warps"]})
            found[name] = _resources(binary.asm["cubin"])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
