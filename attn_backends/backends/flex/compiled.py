"""flex_attention compiled once per feature set, with dynamic shapes and every number of the call in tensors.

Scale, softcap and slopes are loaded by the kernel, so another scale or another length is no new code. Dynamo counts
recompilations per code object (sizes of 1 and head counts are new code) and raises after a few; so each feature set has
a code object of its own, and gets a fresh one when its count is spent.

Not by CUDA graphs of Inductor's, whatever its configuration says: their outputs are the next call's, and ours are the caller's.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

Compiled = Callable[..., tuple[torch.Tensor, torch.Tensor]]


_KERNELS: dict[tuple[Any, ...], Compiled] = {}


def run_compiled(features: tuple[Any, ...], *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """`attend(*arguments)`, compiled at its first call; `features` is whatever makes other code necessary."""
    kernel = _KERNELS.get(features)
    if kernel is None:
        kernel = _KERNELS[features] = _compiled(features)
    try:
        return kernel(*arguments)
    except FailOnRecompileLimitHit:
        kernel = _KERNELS[features] = _compiled(features)
        return kernel(*arguments)


def _compiled(features: tuple[Any, ...]) -> Compiled:
    name = "attend_" + "_".join(str(feature) for feature in features)
    own = types.FunctionType(attend.__code__.replace(co_name=name), attend.__globals__, name)
    return torch.compile(own, dynamic=True, fullgraph=True, options={"triton.cudagraphs": False})


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_mask: BlockMask | None,
    numbers: torch.Tensor,
    slopes: torch.Tensor | None,
    offset: torch.Tensor,
    capped: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and LSE (natural log) of q [B, Hq, S, D], k [B, Hkv, S, D], v; numbers = [scale, softcap], slopes [1 or B, Hq]."""

    def score(raw: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
        scaled = raw * numbers[0]
        if capped:
            scaled = numbers[1] * torch.tanh(scaled / numbers[1])
        if slopes is not None:
            scaled = scaled - slopes[batch, head] * torch.abs(row + offset[0] - key)
        return scaled

    out, aux = flex_attention(
        q, k, v, score_mod=score, block_mask=block_mask, scale=1.0, enable_gqa=True, return_aux=AuxRequest(lse=True)
    )
    lse: Any = aux.lse
    return out, lse
