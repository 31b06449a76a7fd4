"""The kernels of `fp8` compiled for a GPU that is not here: what a call would launch, and what the result costs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import triton
from triton import knobs
from triton.compiler import ASTSource

from attn_backends.backends.fp8.block import BLOCK
from attn_backends.backends.fp8.operands import FORMAT, Operands, blocks_of
from attn_backends.backends.fp8.portable.configs import config_for
from attn_backends.backends.fp8.portable.launch import launch_forward
from attn_backends.backends.fp8.quantize import launch as quantize_launch
from attn_backends.backends.fp8.quantize.launch import quantized
from attn_backends.backends.fp8.quantize.tiles import tiles_for
from attn_backends.backends.triton_tiled.compile_only import _cuda_resources, _standing_in, target_of

HEADS, KV_HEADS = 8, 2


class Compiled:
    """stack: bytes per thread; shared: bytes per block; assembly: PTX."""

    def __init__(self, kernel: Any) -> None:
        self.cubin: bytes = kernel.asm["cubin"]
        self.registers, self.stack = _cuda_resources(self.cubin)
        self.shared: int = kernel.metadata.shared
        self.assembly: str = kernel.asm["ptx"]


def compiled(arch: str, call: Callable[[], object], registers: int = 0) -> Compiled:
    """The one kernel that `call` launches on meta tensors. registers: of a thread at most, 0 for no bound."""
    target = target_of(arch)
    taken: list[tuple[Any, dict[str, Any]]] = []

    def take(*, fn: Any, compile: dict[str, Any], **_more: Any) -> bool:  # noqa: A002  # Triton's name
        taken.append((fn.jit_function, compile))
        return True  # compile nothing

    with _standing_in(target), knobs.runtime.scope():
        knobs.runtime.jit_cache_hook = take
        call()
    ((kernel, given),) = taken
    options = {name: given[name] for name in ("num_warps", "num_stages")} | (
        {"maxnreg": registers} if registers else {}
    )
    source = ASTSource(kernel, given["signature"], given["constants"], given["configs"][0])
    return Compiled(triton.compile(source, target=target, options=options))


def quantise(arch: str, width: int, tokens: int = 4096) -> Compiled:
    """The pass as it is shipped for an architecture, rotating, bfloat16, `bshd`."""
    tiles = tiles_for(_capability(arch), width)
    q, k, v = (
        torch.empty(1, tokens, heads, width, dtype=torch.bfloat16, device="meta").transpose(1, 2)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    with mock.patch.object(quantize_launch, "architecture", return_value=_capability(arch)):
        return compiled(arch, lambda: quantized(q, k, v, tiles=tiles), tiles.registers)


def forward(arch: str, width: int, band: tuple[int, int], tokens: int = 4096) -> Compiled:
    """The portable kernel as it is shipped for an architecture."""
    out = torch.empty(1, HEADS, tokens, width, dtype=torch.bfloat16, device="meta")
    lse = torch.empty(1, HEADS, tokens, device="meta")
    config = config_for(_capability(arch), width)
    operands = Operands(
        q8=_codes(HEADS, tokens, width), k8=_codes(KV_HEADS, tokens, width), vt8=_codes(KV_HEADS, width, blocks_of(tokens) * BLOCK),
        q_scale=_scales(HEADS, tokens), k_scale=_scales(KV_HEADS, tokens), v_scale=_scales(KV_HEADS, tokens),
        longest_q=tokens, longest_k=tokens,
    )  # fmt: skip
    return compiled(arch, lambda: launch_forward(operands, out, lse, width**-0.5, band, config))


def products(kernel: Compiled) -> int:
    """Products of e4m3 in its PTX."""
    return len(re.findall(r"(?:wgmma|mma|tcgen05\.mma)\S*(?:e4m3|f8f6f4)\S*", kernel.assembly))


def ptxas_name(arch: str) -> str:
    """The architecture as Triton names it to the assembler: with what only it has."""
    return arch + ("a" if _capability(arch) >= 90 else "")


def _codes(heads: int, rows: int, columns: int) -> torch.Tensor:
    return torch.empty(1, heads, rows, columns, dtype=FORMAT, device="meta")


def _scales(heads: int, tokens: int) -> torch.Tensor:
    return torch.empty(1, heads, -(-tokens // BLOCK), device="meta")


def _capability(arch: str) -> int:
    return int(arch.removeprefix("sm_"))
