"""Which tiles of paged_decode are fastest: every variant on every decode shape, on one GPU.

    python benchmarks/paged_decode_tiles.py [--store bf16 fp8] [--out benchmarks/results/h200/paged_decode-tiles.json]

One new token per sequence, pages of 16 tokens in random order, fresh random data, L2 cold, medians. Every variant's output
is compared with float64 for the last sequence of the batch before it is timed. What is timed is compiled by processes side
by side. The best rows go into configs.toml by hand.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import torch

from attn_backends.backends.paged_decode import launch as launching
from attn_backends.backends.paged_decode.configs import Config
from attn_backends.backends.paged_decode.operands import operands_of
from attn_backends.bench.clock import CudaClock
from attn_backends.bench.versions import clocks, device_name, versions
from attn_backends.call import Call
from attn_backends.host.dispatch import device_of
from attn_backends.registry.registry import default_registry

SHAPES = (  # sequences, context, query heads, KV heads, width of a head
    (64, 8192, 32, 8, 128), (16, 4096, 32, 8, 128), (1, 32768, 32, 8, 128), (128, 2048, 64, 8, 128), (8, 8192, 16, 16, 128),
    (64, 4096, 64, 8, 64),
)  # fmt: skip
VARIANTS = ((32, 1, 3), (32, 2, 4), (64, 2, 3), (64, 4, 3), (64, 4, 4), (128, 4, 3))  # keys, warps, stages
PROGRAMS = (2, 3, 4, 5)
STORES = {"bf16": None, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
FORMATS = {"bf16": "dense", "fp8": "scaled-fp8-e4m3", "int8": "scaled-int8"}
PAGE = 16
ROUNDS = 15
DESCALE = 1 / 30  # normal values times 30 stay inside every format
Shape = tuple[int, int, int, int, int]


def config_of(variant: tuple[int, int, int], programs: int) -> Config:
    """A row of configs.toml for any call."""
    columns, warps, stages = variant
    return Config(
        arch=0, last_arch=999, bytes=2, stored=2, width=256, rows=16, columns=columns, warps=warps,
        stages=stages, programs=programs,
    )  # fmt: skip


def call_of(shape: Shape, store: str) -> Call:
    """One decode step on the current GPU."""
    batch, context, heads, kv_heads, width = shape
    columns = context // PAGE
    kind = STORES[store]

    def cache() -> torch.Tensor:
        drawn = torch.randn(batch * columns, PAGE, kv_heads, width, device="cuda", dtype=torch.bfloat16)
        return drawn if kind is None else (drawn / DESCALE).clamp(-127, 127).to(kind)

    k, v = cache(), cache()
    q = torch.randn(batch, 1, heads, width, device="cuda", dtype=torch.bfloat16)
    scale = None if kind is None else torch.full((1,), DESCALE, device="cuda")
    granularity = "none" if kind is None else "per_tensor"
    return Call(
        q=q, k=k, v=v, out=torch.full_like(q, torch.nan), causal=True, softmax_scale=width**-0.5, phase="decode",
        block_table=torch.randperm(batch * columns, device="cuda").to(torch.int32).view(batch, columns),
        seq_lens=torch.full((batch,), context, device="cuda", dtype=torch.int32), k_descale=scale, v_descale=scale,
        k_format=FORMATS[store], v_format=FORMATS[store], k_granularity=granularity, v_granularity=granularity,
        max_seqlen_q=1, max_seqlen_k=context,
    )  # fmt: skip


def reference(call: Call) -> torch.Tensor:
    """The last sequence's output in float64, [Hq, D]."""
    assert call.block_table is not None
    pages = call.block_table[-1].long()
    ratio = call.q.shape[2] // call.k.shape[2]

    def rows(cache: torch.Tensor) -> torch.Tensor:
        taken = cache.view(torch.uint8)[pages].view(cache.dtype) if cache.element_size() == 1 else cache[pages]
        values = taken.double().flatten(0, 1) * (1.0 if call.k_descale is None else DESCALE)
        return values.repeat_interleave(ratio, dim=1)

    scores = torch.einsum("hd,nhd->hn", call.q[-1, 0].double(), rows(call.k)) * call.softmax_scale
    return torch.einsum("hn,nhd->hd", scores.softmax(-1), rows(call.v))


def compile_variant(job: tuple[Shape, str, tuple[int, int, int]]) -> None:
    """Compile what a timed call will launch, into Triton's cache on disk."""
    shape, store, variant = job
    call = call_of((shape[0], 64, *shape[2:]), store)
    launching.launch(call, operands_of(call), config_of(variant, 2))
    torch.cuda.synchronize()


def rows_of(shape: Shape, store: str, clock: CudaClock) -> list[dict[str, Any]]:
    """Every variant on one shape, the fastest first."""
    call = call_of(shape, store)
    operands, right = operands_of(call), reference(call)
    read = 2 * shape[0] * shape[1] * shape[3] * shape[4] * call.k.element_size()
    found = []
    for variant, programs in product(VARIANTS, PROGRAMS):
        config = config_of(variant, programs)
        call.out.fill_(torch.nan)
        launching.launch(call, operands, config)
        error = float((call.out[-1, 0].double() - right).norm() / right.norm())
        times = [clock.sample(lambda: launching.launch(call, operands, config), 1.0)[0] for _ in range(ROUNDS)]  # noqa: B023  # called at once
        ms = statistics.median(times)
        low, _middle, high = statistics.quantiles(times, n=4)
        found.append({
            "store": store, "shape": shape, "columns": variant[0], "warps": variant[1], "stages": variant[2],
            "programs": programs, "ms": ms, "iqr_ms": high - low, "kv_gbs": read / ms / 1e6, "error": error,
        })  # fmt: skip
    return sorted(found, key=lambda row: float(row["ms"]))


def main() -> int:
    """Time everything, print the best of every shape, write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", nargs="+", default=["bf16", "fp8"], choices=list(STORES))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200/paged_decode-tiles.json"))
    given = parser.parse_args()
    with ProcessPoolExecutor(14, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_variant, product(SHAPES, given.store, VARIANTS)))
    device = torch.device("cuda", torch.cuda.current_device())
    clock = CudaClock(device, device_of(device))
    rows = []
    for store, shape in product(given.store, SHAPES):
        found = rows_of(shape, store, clock)
        rows += found
        best = found[0]
        print(
            store,
            shape,
            f"{best['kv_gbs']:.0f} GB/s",
            {name: best[name] for name in ("columns", "warps", "stages", "programs")},
        )
    record = {
        "schema": "attn.paged_decode_tiles/1", "command": "python " + " ".join(sys.argv), "device": device_name(device),
        "versions": versions(default_registry().snapshot()), "clocks": clocks(device), "method": clock.method, "rounds": ROUNDS, "rows": rows,
    }  # fmt: skip
    given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
