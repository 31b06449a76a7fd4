"""Compile the shipped Hopper pipelines of `fp8` for sm_90 as calls would launch them; one JSON object per kernel.

--all: each for whole and ragged keys, for the pass's scales and a caller's. A process of its own, because the tests' may have
Triton's interpreter on.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from itertools import product
from typing import Any
from unittest import mock

import torch
import triton
from triton import knobs
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime.driver import driver

from attn_backends.backends.fp8.block import BLOCK
from attn_backends.backends.fp8.hopper import launch
from attn_backends.backends.fp8.hopper.configs import Config, configs
from attn_backends.backends.fp8.operands import FORMAT, Operands
from attn_backends.backends.hopper import compile_only
from tests.backends.fp8_assembled import spills_in_loops, warnings

compile_only.INSTRUCTIONS = (
    "QGMMA",
    "HGMMA",
    "UTMALDG",
    "UTMASTG",
    "USETMAXREG",
    "SHFL",
    "PRMT",
    "LDL",
    "STL",
    "ACQBULK",
)

SCALE = 0.1


def operands(tokens: int, width: int, given: bool) -> Operands:
    """Without memory; given: their scales are a caller's."""
    codes = torch.empty(1, 4, tokens, width, dtype=FORMAT, device="meta")
    scales = torch.empty(1, 4, -(-tokens // BLOCK), device="meta")
    turned = torch.empty(1, 4, width, scales.shape[2] * BLOCK, dtype=FORMAT, device="meta")
    return Operands(
        q8=codes, k8=codes, vt8=turned, q_scale=scales, k_scale=scales, v_scale=scales, longest_q=tokens, longest_k=tokens,
        softmax_scale=None if given else SCALE,
    )  # fmt: skip


def launched(config: Config, tokens: int, given: bool) -> compile_only.Launch:
    """What a call would launch."""
    found: list[compile_only.Launch] = []

    def take(*, fn: Any, compile: dict[str, Any], **_more: Any) -> bool:  # noqa: A002  # Triton's name
        found.append(
            compile_only.Launch(
                kernel=fn.jit_function, signature=compile["signature"], constants=compile["constants"],
                attributes=compile["configs"][0], options=compile_only._options(compile["specialization_data"]),
            )
        )  # fmt: skip
        return True  # compile nothing

    made = operands(tokens, config.head_dim, given)
    out = torch.empty(made.q8.shape, dtype=torch.bfloat16, device="meta")
    lse = torch.empty(made.q8.shape[:3], device="meta")
    real = driver._active
    driver.set_active(compile_only._StandIn())
    try:
        with mock.patch.object(launch, "multiprocessors", return_value=132), knobs.runtime.scope():
            knobs.runtime.jit_cache_hook = take
            launch.launch_forward(made, out, lse, SCALE, config.causal, config)
    finally:
        driver._active = real
    (only,) = found
    return only


def cost_of(launch: compile_only.Launch) -> dict[str, Any]:
    """What `compile_only` counts, and what the assembler says."""
    kernel = triton.compile(
        GluonASTSource(launch.kernel, launch.signature, launch.constants, launch.attributes),
        target=compile_only.TARGET, options=launch.options,
    )  # fmt: skip
    return {
        **dataclasses.asdict(compile_only.compiled(launch)),
        "spills_in_loops": spills_in_loops(kernel.asm["cubin"]),
        "warnings": warnings(kernel.asm["ptx"], "sm_90a"),
    }


def main() -> None:
    """Each pipeline, whole and ragged by turns or both; causal ones for a caller's scales, or all for both."""
    every = sys.argv[1:] == ["--all"]
    for place, config in enumerate(configs()):
        by_turns = ((1024, 1000)[place // 2 % 2], place % 2 == 1)
        for tokens, given in product((1024, 1000), (False, True)) if every else (by_turns,):
            told = {"head_dim": config.head_dim, "causal": config.causal, "tokens": tokens, "given": given}
            print(json.dumps({**told, **cost_of(launched(config, tokens, given))}), flush=True)


if __name__ == "__main__":
    main()
