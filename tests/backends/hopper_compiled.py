"""Compile the shipped pipelines for sm_90 as calls would launch them, and some that the budget model prunes.

Prints one JSON object per kernel: each pipeline in one kind by turns; with --all in two dtypes, with whole and with ragged
tiles. A process of its own, because the tests' may have Triton's interpreter on.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from itertools import product

import torch

from attn_backends.backends.hopper.compile_only import compiled, launch_of, meta_call
from attn_backends.backends.hopper.configs import Config, config_for, configs
from attn_backends.pipeline.budget import Budget
from attn_backends.pipeline.chip import HOPPER

LENGTHS = {"whole tiles": (1024, 1024), "ragged": (1000, 1111)}


def pruned() -> list[Config]:
    """Pipelines that take more registers than there are."""
    narrow, middle, wide = (config_for(width, False, 4096) for width in (64, 128, 256))
    assert narrow is not None
    assert middle is not None
    assert wide is not None
    return [
        dataclasses.replace(narrow, q_registers=True),
        dataclasses.replace(middle, q_tiles=3, stages=1, q_registers=False, registers=160, max_registers=128),
        dataclasses.replace(wide, keys=128, stages=1, s_stages=1),
    ]


def show(config: Config, dtype: torch.dtype, lengths: str, shipped: bool) -> None:
    call = meta_call(config.head_dim, causal=config.causal, dtype=dtype, seq=LENGTHS[lengths])
    cost = compiled(launch_of(call, config))
    budget = Budget(plan=config.plan, chip=HOPPER)
    told = {"shipped": shipped, "head_dim": config.head_dim, "causal": config.causal, "dtype": str(dtype)}
    print(json.dumps({**told, "fits": budget.fits, "budget": budget.shared, **dataclasses.asdict(cost)}))


def main() -> None:
    kinds = list(product((torch.bfloat16, torch.float16), LENGTHS))
    for place, config in enumerate(configs()):
        for dtype, lengths in kinds if sys.argv[1:] == ["--all"] else [kinds[place % len(kinds)]]:
            show(config, dtype, lengths, True)
    for config in pruned():
        show(config, torch.bfloat16, "whole tiles", False)


if __name__ == "__main__":
    main()
