"""Compile every shipped pipeline for sm_90 as calls would launch it, and print one JSON object per kernel.

A process of its own, because the tests' may have Triton's interpreter on.
"""

from __future__ import annotations

import dataclasses
import json

import torch

from attn_backends.backends.hopper.compile_only import compiled, launch_of, meta_call
from attn_backends.backends.hopper.configs import configs

LENGTHS = {"whole tiles": (1024, 1024), "ragged": (1000, 1111)}


def main() -> None:
    for config in configs():
        for dtype in (torch.bfloat16, torch.float16):
            for name, seq in LENGTHS.items():
                call = meta_call(config.head_dim, causal=config.causal, dtype=dtype, seq=seq)
                cost = compiled(launch_of(call))
                told = {"head_dim": config.head_dim, "causal": config.causal, "dtype": str(dtype), "lengths": name}
                print(json.dumps({**told, "allowed": config.shared, **dataclasses.asdict(cost)}))


if __name__ == "__main__":
    main()
