"""Which part of the Hopper pipeline helps how much: every schedule and switch, with the model's prediction beside it.

    python benchmarks/hopper.py [--head-dim 64 128 256] [--seq 1024 4096 16384] [--out FILE]

16384 tokens, heads x head_dim = 2048, bfloat16, fresh random data, L2 cold. Variants that the budget model prunes are not
compiled. What is left is compiled by processes side by side and held against float64, then timed in turn, round by round,
together with the peers that are installed, so that a chip that warms up meets all of them alike. Needs a Hopper GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import multiprocessing
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import torch

from attn_backends import AttnBackendsError, attention
from attn_backends.backends.hopper.adapter import run
from attn_backends.backends.hopper.configs import Config, config_for
from attn_backends.bench.clock import CudaClock
from attn_backends.bench.versions import clocks, device_name, versions
from attn_backends.call import Call
from attn_backends.host.dispatch import device_of
from attn_backends.pipeline.budget import Budget
from attn_backends.pipeline.chip import HOPPER
from attn_backends.pipeline.timeline import timeline
from attn_backends.registry.registry import default_registry

TOKENS, WIDTH, ROUNDS = 16384, 2048, 15
PEERS = ("fa3", "sdpa_cudnn")
REGISTERS = {1: (240, 168), 2: (240, 168), 3: (160, 128)}  # of a consumer thread, and the kernel's bound
# What differs from the shipped pipeline.
VARIANTS: dict[str, dict[str, Any]] = {
    "shipped": {},
    "serial": {"q_tiles": 1, "s_stages": 1},
    "single Q, dual S": {"q_tiles": 1, "s_stages": 2},
    "dual Q, single S": {"q_tiles": 2, "s_stages": 1},
    "dual Q, dual S": {"q_tiles": 2, "s_stages": 2},
    "triple Q, dual S": {"q_tiles": 3, "s_stages": 2, "q_registers": False},
    "triple Q, single S": {"q_tiles": 3, "s_stages": 1, "q_registers": False, "ping_pong": False},
    "triple Q, single S, ping-pong": {"q_tiles": 3, "s_stages": 1, "q_registers": False, "ping_pong": True},
    "triple Q, single S, tickets drawn": {"q_tiles": 3, "s_stages": 1, "q_registers": False, "dynamic": True},
    "triple Q, single S, 64 keys": {"q_tiles": 3, "s_stages": 1, "q_registers": False, "keys": 64, "stages": 3},
    "triple Q, single S, 64 keys, tickets drawn": {
        "q_tiles": 3,
        "s_stages": 1,
        "q_registers": False,
        "keys": 64,
        "stages": 3,
        "dynamic": True,
    },
    "ping-pong": {"ping_pong": True},
    "late wait": {"late_wait": True},
    "ping-pong and late wait": {"ping_pong": True, "late_wait": True},
    "queries in registers": {"q_registers": True},
    "queries in shared memory": {"q_registers": False},
    "not persistent": {"persistent": False, "dynamic": False},
    "tickets in order": {"dynamic": False},
    "tickets drawn": {"dynamic": True},
    "tickets drawn, ping-pong": {"dynamic": True, "ping_pong": True},
    "tickets drawn, late wait": {"dynamic": True, "late_wait": True},
    "tickets drawn, queries in shared memory": {"dynamic": True, "q_registers": False},
    "ping-pong, queries in shared memory": {"ping_pong": True, "q_registers": False},
    "ping-pong, queries in registers": {"ping_pong": True, "q_registers": True},
    "triple Q, ping-pong": {"q_tiles": 3, "q_registers": False, "ping_pong": True},
    "triple Q, late wait": {"q_tiles": 3, "q_registers": False, "late_wait": True},
    "triple Q, ping-pong and late wait": {"q_tiles": 3, "q_registers": False, "ping_pong": True, "late_wait": True},
    "three stages, output through Q's memory": {"stages": 3, "shared_out": True},
    "three stages of K, output through Q's memory": {"k_stages": 3, "shared_out": True},
    "two stages": {"stages": 2},
    "four stages": {"stages": 4},
    "five stages": {"stages": 5},
    "one head at a time": {"sweep_bytes": 1},
    "12 MB at a time": {"sweep_bytes": 12_000_000},
    "24 MB at a time": {"sweep_bytes": 24_000_000},
    "40 MB at a time": {"sweep_bytes": 40_000_000},
    "64 MB at a time": {"sweep_bytes": 64_000_000},
    "all heads at once": {"sweep_bytes": 1 << 40},
}


def variants(head_dim: int, causal: bool, seq: int, only: Sequence[str] = ()) -> dict[str, Config]:
    """Those that differ from each other and fit, by name."""
    shipped = config_for(head_dim, causal, seq)
    assert shipped is not None
    found: dict[str, Config] = {}
    for name, changes in VARIANTS.items():
        if only and name not in only:
            continue
        config = dataclasses.replace(shipped, **changes)
        registers, bound = REGISTERS[config.q_tiles]
        config = dataclasses.replace(config, registers=registers, max_registers=bound)
        # The budget counts weights beside the next scores; with single S they lie where the scores were.
        if config not in found.values() and (config.s_stages == 1 or Budget(plan=config.plan, chip=HOPPER).fits):
            found[name] = config
    return found


def call_of(head_dim: int, seq: int, causal: bool, tokens: int = TOKENS) -> Call:
    """Fresh random data on the current GPU."""
    shape = (tokens // seq, seq, WIDTH // head_dim, head_dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    lse = torch.empty(shape[0], shape[2], seq, device="cuda")
    return Call(q=q, k=k, v=v, out=torch.empty_like(q), lse=lse, causal=causal, softmax_scale=head_dim**-0.5)


def error_of(call: Call) -> float:
    """Of what is in `out`, relative, against float64: the last head of the last sequence."""
    q, k, v, out = (tensor[-1, :, -1].double() for tensor in (call.q, call.k, call.v, call.out))
    scores = q @ k.T * call.softmax_scale
    if call.causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    right = scores.softmax(-1) @ v
    return float((out - right).norm() / right.norm())


def compile_variant(job: tuple[int, bool, Config]) -> None:
    """Compile what a timed call will launch, into Triton's cache on disk."""
    head_dim, causal, config = job
    run(call_of(head_dim, 1024, causal, 1024), config)
    torch.cuda.synchronize()


def contenders(call: Call, configs: dict[str, Config]) -> dict[str, Callable[[], Any]]:
    """Every variant, and the peers that take the call."""
    found: dict[str, Callable[[], Any]] = {
        name: lambda config=config: run(call, config) for name, config in configs.items()
    }
    for peer in PEERS:

        def ask(peer: str = peer) -> Any:
            return attention(call.q, call.k, call.v, causal=call.causal, backend=peer)

        try:
            ask()
        except AttnBackendsError as missing:
            print(f"{peer}: {str(missing).splitlines()[0]}", file=sys.stderr)
        else:
            found[peer] = ask
    return found


def rows_of(head_dim: int, seq: int, causal: bool, clock: CudaClock, only: Sequence[str]) -> list[dict[str, Any]]:
    """Every variant and peer on one shape."""
    call, configs = call_of(head_dim, seq, causal), variants(head_dim, causal, seq, only)
    asked = contenders(call, configs)
    errors = {}
    for name, config in configs.items():
        call.out.fill_(torch.nan)
        run(call, config)
        errors[name] = error_of(call)
    times: dict[str, list[float]] = {name: [] for name in asked}
    order = list(asked)
    for _ in range(ROUNDS):
        random.shuffle(order)  # a chip remembers for a while what it did before: power and temperature
        for name in order:
            times[name].append(clock.sample(asked[name], 1.0)[0])
    flops = 4 * TOKENS * seq * WIDTH / (2 if causal else 1)
    rows = []
    for name, taken in times.items():
        ms = statistics.median(taken)
        low, _middle, high = statistics.quantiles(taken, n=4)
        model = timeline(configs[name].plan, HOPPER) if name in configs else None
        rows.append({
            "head_dim": head_dim, "seq": seq, "causal": causal, "variant": name, "ms": ms, "iqr_ms": high - low,
            "tflops": flops / ms / 1e9, "error": errors.get(name),
            "modelled": None if model is None else {"overlap": model.overlap, "of_peak": model.rate},
            "config": dataclasses.asdict(configs[name]) if name in configs else None,
        })  # fmt: skip
    return rows


def main() -> int:
    """Time everything, print it, write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--head-dim", nargs="+", type=int, default=[64, 128, 256])
    parser.add_argument("--seq", nargs="+", type=int, default=[1024, 4096, 16384])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200/hopper-ablation.json"))
    parser.add_argument("--only", nargs="+", default=[], help="these variants, by name; all")
    given = parser.parse_args()
    pairs = list(product(given.head_dim, (False, True)))
    with ProcessPoolExecutor(14, mp_context=multiprocessing.get_context("spawn")) as pool:
        cells = [(*pair, seq) for pair in pairs for seq in given.seq]
        jobs = {(*cell[:2], config) for cell in cells for config in variants(*cell, given.only).values()}
        list(pool.map(compile_variant, jobs))
    device = torch.device("cuda", torch.cuda.current_device())
    clock = CudaClock(device, device_of(device))
    rows = []
    for (head_dim, causal), seq in product(pairs, given.seq):
        found = rows_of(head_dim, seq, causal, clock, given.only)
        rows += found
        print(
            f"D{head_dim} S{seq} {'causal' if causal else 'full'}",
            {row["variant"]: round(row["tflops"]) for row in found},
        )
    record = {
        "schema": "attn.hopper_ablation/1", "command": "python " + " ".join(sys.argv), "device": device_name(device),
        "versions": versions(default_registry().snapshot()), "clocks": clocks(device), "method": clock.method,
        "rounds": ROUNDS, "rows": rows,
    }  # fmt: skip
    given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
