"""The fp8 pipelines against FlashAttention-3 in fp8 and against this project's own 16-bit pipeline, on one Hopper GPU.

    python benchmarks/fp8.py [--head-dim 64 128 256] [--seq 4096 16384] [--gqa 1 8] [--only NAME ...] [--out FILE]

16384 tokens, heads x head_dim = 2048, --gqa query heads to a key head, fresh random data, L2 cold. Pipelines are timed on
operands that lie there, as the pass makes them, and the shipped one on a caller's scales as well, which need not be powers of two;
`quantised` is the fused pass before them, which reads 2 bytes and writes 1 for each number of q, k and v, `a copy` copies these
three, and `quantised and attended` is both, through `attention`. Errors are relative, against float64: `of the operands` on what the
codes stand for, which leaves the kernel's own rounding; `of the tensors` on what was given. Variants are compiled side by
side and held against float64, then timed in turn, round by round, together with the peers.
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
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from attn_backends import AttnBackendsError, Policy, attention
from attn_backends.backends.fp8.block import BLOCK
from attn_backends.backends.fp8.hopper.configs import Config, config_for
from attn_backends.backends.fp8.hopper.launch import launch_forward
from attn_backends.backends.fp8.operands import FORMAT, Operands, blocks_of, key_order
from attn_backends.backends.fp8.quantize.launch import quantized
from attn_backends.backends.hopper import adapter as hopper
from attn_backends.bench.clock import CudaClock
from attn_backends.bench.versions import clocks, device_name, versions
from attn_backends.call import Call
from attn_backends.host.dispatch import device_of
from attn_backends.registry.registry import default_registry

TOKENS, WIDTH, ROUNDS = 16384, 2048, 15
BYTES = {"quantised": 3, "a copy": 4}  # read and written for each number of q, k and v
LARGEST = 448.0
REGISTERS = {2: (240, 168), 3: (160, 128)}  # of a consumer thread, and the kernel's bound
OVERLAPPED: dict[str, Any] = {"parts": 0, "q_tiles": 2}
VARIANTS: dict[str, dict[str, Any]] = {
    "shipped": {},
    "ping-pong flipped": {},  # of what ships
    "overlapped": OVERLAPPED,
    "overlapped, ping-pong": {**OVERLAPPED, "ping_pong": True},
    "overlapped, late wait": {**OVERLAPPED, "late_wait": True},
    "overlapped, queries in registers": {**OVERLAPPED, "q_registers": True},
    "overlapped, in the unit": {**OVERLAPPED, "two_level": False},
    "overlapped, in the unit, ping-pong": {**OVERLAPPED, "two_level": False, "ping_pong": True},
    "three overlapped": {"parts": 0, "q_tiles": 3},
    "three overlapped, ping-pong": {"parts": 0, "q_tiles": 3, "ping_pong": True},
    "three overlapped, in the unit": {"parts": 0, "q_tiles": 3, "two_level": False},
    "two, one by one": {"parts": 1, "q_tiles": 2},
    "three, one by one": {"parts": 1, "q_tiles": 3},
    "three, one by one, ping-pong": {"parts": 1, "q_tiles": 3, "ping_pong": True},
    "two, one by one, in halves": {"parts": 2, "q_tiles": 2},
    "two stages": {"stages": 2},
    "four stages": {"stages": 4},
    "tickets in order": {"dynamic": False},
    "12 MB at a time": {"sweep_bytes": 12_000_000},
    "24 MB at a time": {"sweep_bytes": 24_000_000},
    "all heads at once": {"sweep_bytes": 1 << 40},
    "one head at a time": {"sweep_bytes": 1},
}


def variants(head_dim: int, causal: bool, only: Sequence[str] = ()) -> dict[str, Config]:
    """Those that differ from each other, by name."""
    shipped = config_for(head_dim, causal)
    assert shipped is not None
    found: dict[str, Config] = {}
    for name, changes in VARIANTS.items():
        if only and name not in only:
            continue
        config = dataclasses.replace(shipped, **changes)
        if name == "ping-pong flipped":
            config = dataclasses.replace(shipped, ping_pong=not shipped.ping_pong)
        registers, bound = REGISTERS[config.q_tiles]
        config = dataclasses.replace(config, registers=registers, max_registers=bound)
        if config not in found.values():
            found[name] = config
    return found


def rounded(x: torch.Tensor, weight: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes, scales) of [B, H, S, D] in blocks of tokens, by torch; weight: what makes scales powers of two, None: they are none."""
    batch, heads, tokens, width = x.shape
    blocks = x.float().reshape(batch, heads, tokens // BLOCK, BLOCK, width)
    scale = blocks.abs().amax((3, 4)) / LARGEST
    if weight is not None:
        scale = (scale * weight).log2().ceil().exp2() / weight
    return (blocks / scale[..., None, None]).to(FORMAT).reshape(x.shape), scale


def operands_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, given: bool = False) -> Operands:
    """Operands of [B, S, H, D], a multiple of 128 tokens, as the pass makes them; given: as a caller does, with any scales."""
    softmax_scale = None if given else q.shape[3] ** -0.5
    weights = (None, None, None) if softmax_scale is None else (softmax_scale * math.log2(math.e), 1.0, None)
    (q8, q_scale), (k8, k_scale), (v8, v_scale) = (
        rounded(x.transpose(1, 2), weight) for x, weight in zip((q, k, v), weights, strict=True)
    )
    tokens = q8.shape[2]
    order = key_order(tokens).to(v8.device)
    vt8 = v8.view(torch.int8)[:, :, order].transpose(2, 3).contiguous().view(FORMAT)
    assert blocks_of(tokens) == q_scale.shape[2]
    return Operands(
        q8=q8, k8=k8, vt8=vt8, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, longest_q=tokens, longest_k=tokens,
        softmax_scale=softmax_scale,
    )  # fmt: skip


def meant(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """What the last head of the last sequence stands for, float64 [S, D]."""
    return codes[-1, -1].double() * scale[-1, -1].double().repeat_interleave(BLOCK)[:, None]


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Attention in float64, [S, D] each."""
    scores = q @ k.T * q.shape[1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    found: torch.Tensor = scores.softmax(-1) @ v
    return found


def relative(got: torch.Tensor, right: torch.Tensor) -> float:
    """||got - right|| / ||right||."""
    return float((got.double() - right).norm() / right.norm())


def shapes(head_dim: int, seq: int, gqa: int) -> tuple[tuple[int, int, int, int], tuple[int, int, int, int]]:
    """(q's, k's and v's) as [B, S, H, D]. Raises ValueError where heads are no multiple of `gqa`."""
    heads = WIDTH // head_dim
    if heads % gqa:
        raise ValueError(f"{heads} heads of {head_dim} are no multiple of --gqa {gqa}")
    return (TOKENS // seq, seq, heads, head_dim), (TOKENS // seq, seq, heads // gqa, head_dim)


def compile_variant(job: tuple[int, bool, Config]) -> Config | None:
    """Compile what timed calls will launch, into Triton's cache on disk; the pipeline, where that cannot be."""
    try:
        for given in (False, True):
            _launch_once(*job, given)
    except Exception as refused:  # noqa: BLE001  # registers or shared memory: the compiler's errors are of many kinds
        print(f"{job[2]}: {type(refused).__name__}", file=sys.stderr)
        return job[2]
    return None


def _launch_once(head_dim: int, causal: bool, config: Config, given: bool) -> None:
    q, k, v = (torch.randn(1, 1024, 2, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    out = torch.empty_like(q).transpose(1, 2)
    lse = torch.empty(1, 2, 1024, device="cuda")
    launch_forward(operands_of(q, k, v, given=given), out, lse, head_dim**-0.5, causal, config)
    torch.cuda.synchronize()


class Cell:
    """One shape: inputs, what is right, and everything that computes it."""

    def __init__(
        self, head_dim: int, seq: int, causal: bool, configs: dict[str, Config], *, gqa: int = 1, device: str = "cuda"
    ) -> None:
        shape, kv_shape = shapes(head_dim, seq, gqa)
        self.q, self.k, self.v = (
            torch.randn(one, device=device, dtype=torch.bfloat16) for one in (shape, kv_shape, kv_shape)
        )
        self.head_dim, self.seq, self.causal = head_dim, seq, causal
        self.operands = operands_of(self.q, self.k, self.v)
        self.out = torch.empty_like(self.q)
        self.lse = torch.empty(shape[0], shape[2], seq, device=device)
        self.configs = configs
        self.given = operands_of(self.q, self.k, self.v, given=True)

    def right(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the operands, of the tensors; last head of the last sequence."""
        given = self.operands
        v8 = torch.empty_like(given.vt8.view(torch.int8))
        v8[..., key_order(self.seq).to(v8.device)] = given.vt8.view(torch.int8)
        pairs = ((given.q8, given.q_scale), (given.k8, given.k_scale), (v8.transpose(2, 3).view(FORMAT), given.v_scale))
        q, k, v = (meant(codes, scale) for codes, scale in pairs)
        of_operands = exact(q, k, v, self.causal)
        q, k, v = (x[-1, :, -1].double() for x in (self.q, self.k, self.v))
        return of_operands, exact(q, k, v, self.causal)

    def numbers(self) -> int:
        """Of q, k and v."""
        return self.q.numel() + self.k.numel() + self.v.numel()

    def run(self, config: Config | None) -> torch.Tensor:
        """The pipeline on the operands."""
        launch_forward(self.operands, self.out.transpose(1, 2), self.lse, self.head_dim**-0.5, self.causal, config)
        return self.out

    def run_given(self) -> torch.Tensor:
        """The shipped pipeline on a caller's scales."""
        launch_forward(self.given, self.out.transpose(1, 2), self.lse, self.head_dim**-0.5, self.causal)
        return self.out

    def contenders(self) -> dict[str, Callable[[], torch.Tensor | None]]:
        """By name; what attends returns its output [B, S, H, D]."""
        found: dict[str, Callable[[], torch.Tensor | None]] = {
            name: partial(self.run, config) for name, config in self.configs.items()
        }
        call = Call(
            q=self.q, k=self.k, v=self.v, out=torch.empty_like(self.q), lse=self.lse, causal=self.causal,
            softmax_scale=self.head_dim**-0.5,
        )  # fmt: skip

        def sixteen_bits() -> torch.Tensor:
            hopper.run(call)
            return call.out

        found["hopper, 16 bits"] = sixteen_bits
        found["shipped, a caller's scales"] = self.run_given
        policy = Policy(numerics=frozenset({"exact", "quantized"}))
        scales = [x.float().abs().amax() / LARGEST for x in (self.q, self.k, self.v)]
        codes = [(x / scale).to(FORMAT) for x, scale in zip((self.q, self.k, self.v), scales, strict=True)]

        def fa3() -> torch.Tensor:
            out = attention(
                *codes, causal=self.causal, backend="fa3_fp8", policy=policy,
                q_descale=scales[0], k_descale=scales[1], v_descale=scales[2],
            )  # fmt: skip
            assert isinstance(out, torch.Tensor)  # without its LSE
            return out

        def both() -> torch.Tensor:
            out = attention(self.q, self.k, self.v, causal=self.causal, backend="fp8", policy=policy)
            assert isinstance(out, torch.Tensor)
            return out

        def quantise() -> None:
            q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))
            quantized(q, k, v, softmax_scale=self.head_dim**-0.5)

        found["quantised"] = quantise
        source = torch.randint(0, 99, (self.numbers(),), dtype=torch.int16, device=self.q.device)
        target = torch.empty_like(source)
        found["a copy"] = lambda: (target.copy_(source), None)[1]
        for name, ask in (("fa3_fp8", fa3), ("quantised and attended", both)):
            try:
                ask()
            except (AttnBackendsError, ImportError) as missing:
                print(f"{name}: {str(missing).splitlines()[0]}", file=sys.stderr)
            else:
                found[name] = ask
        return found


def rows_of(cell: Cell, clock: CudaClock) -> list[dict[str, Any]]:
    """Every variant and peer on one shape."""
    asked = cell.contenders()
    of_operands, of_tensors = cell.right()
    errors = {}
    for name, ask in asked.items():
        cell.out.fill_(torch.nan)
        out = ask()
        if out is not None:
            out = out[-1, :, -1]
            errors[name] = {"of the operands": relative(out, of_operands), "of the tensors": relative(out, of_tensors)}
    times: dict[str, list[float]] = {name: [] for name in asked}
    order = list(asked)
    for _ in range(ROUNDS):
        random.shuffle(order)  # a chip remembers for a while what it did before: power and temperature
        for name in order:
            times[name].append(clock.sample(asked[name], 1.0)[0])
    flops = 4 * TOKENS * cell.seq * WIDTH / (2 if cell.causal else 1)
    rows = []
    for name, taken in times.items():
        ms = statistics.median(taken)
        low, _middle, high = statistics.quantiles(taken, n=4)
        rows.append({
            "head_dim": cell.head_dim, "seq": cell.seq, "causal": cell.causal, "heads": cell.q.shape[2],
            "kv_heads": cell.k.shape[2], "variant": name, "ms": ms,
            "iqr_ms": high - low, "tflops": None if name in BYTES else flops / ms / 1e9, "error": errors.get(name),
            "gb_per_s": BYTES[name] * cell.numbers() / ms / 1e6 if name in BYTES else None,
            "config": dataclasses.asdict(cell.configs[name]) if name in cell.configs else None,
        })  # fmt: skip
    return rows


def main() -> int:
    """Time everything, print it, write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--head-dim", nargs="+", type=int, default=[64, 128, 256])
    parser.add_argument("--seq", nargs="+", type=int, default=[4096, 16384])
    parser.add_argument("--gqa", nargs="+", type=int, default=[1], help="query heads to a key head")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200/fp8.json"))
    parser.add_argument("--only", nargs="+", default=[], help="these variants, by name; all")
    given = parser.parse_args()
    cells = list(product(given.head_dim, (False, True), given.seq, given.gqa))
    for head_dim, _causal, seq, gqa in cells:
        shapes(head_dim, seq, gqa)  # before anything is compiled
    with ProcessPoolExecutor(14, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = {(*cell[:2], config) for cell in cells for config in variants(*cell[:2], given.only).values()}
        refused = set(pool.map(compile_variant, jobs))
    device = torch.device("cuda", torch.cuda.current_device())
    clock = CudaClock(device, device_of(device))
    rows = []
    for head_dim, causal, seq, gqa in cells:
        configs = {
            name: config for name, config in variants(head_dim, causal, given.only).items() if config not in refused
        }
        found = rows_of(Cell(head_dim, seq, causal, configs, gqa=gqa), clock)
        rows += found
        print(f"D{head_dim} S{seq} {'causal' if causal else 'full'}{f' GQA {gqa}' if gqa > 1 else ''}")
        for row in sorted(found, key=lambda row: row["ms"]):
            if row["error"] is None:
                print(f"  {row['gb_per_s']:6.0f} GB/s {row['variant']}")
            else:
                print(f"  {row['tflops']:6.0f} TFLOP/s {row['error']} {row['variant']}")
    record = {
        "schema": "attn.fp8/1", "command": "python " + " ".join(sys.argv), "device": device_name(device),
        "versions": versions(default_registry().snapshot()), "clocks": clocks(device), "method": clock.method,
        "rounds": ROUNDS, "rows": rows,
    }  # fmt: skip
    given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
