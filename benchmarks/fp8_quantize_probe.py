"""The quantise pass of `fp8` on this GPU: GB/s of every way to cut it, the L2 cache cold. Tests say whether it is right.

    python benchmarks/fp8_quantize_probe.py

The best rows go into backends/fp8/quantize/tiles.toml.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import multiprocessing
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import torch

from attn_backends.backends.fp8.block import BLOCK
from attn_backends.backends.fp8.quantize.launch import architecture, dense, quantized, transposed
from attn_backends.backends.fp8.quantize.tiles import Tiles, tiles_for
from attn_backends.bench.clock import CudaClock
from attn_backends.host.dispatch import device_of

SHAPES = {64: 32, 128: 16, 256: 8}  # head width -> heads
TOKENS = 16384
WARPS = {64: (2, 4, 8), 128: (4, 8), 256: (4, 8, 16)}
STAGES, AHEAD, REGISTERS, PARTS, BLOCKS = (1, 2, 3), (False, True), (0, 128), (64, 128), (2, 4, 8, 16)
ROUNDS = 9


def ways(width: int) -> list[Tiles]:
    """Every way to cut the pass for heads of `width`; `blocks` is no part of a kernel's compilation."""
    cuts = itertools.product(WARPS[width], STAGES, AHEAD, REGISTERS, [part for part in PARTS if part <= width])
    return [
        Tiles(head_dim=width, blocks=8, warps=warps, stages=stages, ahead=ahead, registers=registers, part=part)
        for warps, stages, ahead, registers, part in cuts
    ]


def drawn(heads: int, tokens: int, width: int, layout: str, dtype: torch.dtype) -> torch.Tensor:
    """[1, heads, tokens, width], a view of the layout."""
    shape = (1, tokens, heads, width) if layout == "bshd" else (1, heads, tokens, width)
    x = torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)
    return x.transpose(1, 2) if layout == "bshd" else x


def compiled(tiles: Tiles) -> Tiles | None:
    """Compile one way into Triton's cache on disk; None where it does not fit."""
    q, k, v = (drawn(2, BLOCK, tiles.head_dim, "bshd", torch.bfloat16) for _ in range(3))
    try:
        quantized(q, k, v, tiles=tiles)
        torch.cuda.synchronize()
    except Exception as refused:  # noqa: BLE001  # registers or shared memory: the compiler's errors are of many kinds
        print(f"{tiles}: {type(refused).__name__}", file=sys.stderr)
        return None
    return tiles


def gb_per_s(clock: CudaClock, size: int, call: Callable[[], object]) -> float:
    """Of `size` bytes read and written, by the median."""
    call()
    return size / statistics.median(clock.sample(call, 0.3)[0] for _ in range(ROUNDS)) / 1e6


def main() -> None:
    """Print GB/s of every way, the fastest last, beside a copy of as many bytes."""
    with ProcessPoolExecutor(14, mp_context=multiprocessing.get_context("spawn")) as pool:
        fitting = [tiles for tiles in pool.map(compiled, itertools.chain(*map(ways, SHAPES))) if tiles]
    device = torch.device("cuda", torch.cuda.current_device())
    clock = CudaClock(device, device_of(device))
    a = torch.randint(0, 99, (3 * TOKENS * 2048 * 3 // 2,), dtype=torch.int8, device="cuda")
    b = torch.empty_like(a)
    copied = gb_per_s(clock, 2 * a.numel(), lambda: b.copy_(a))
    print(f"copy: {copied:.0f} GB/s", flush=True)
    for width, heads in SHAPES.items():
        q, k, v = (drawn(heads, TOKENS, width, "bshd", torch.bfloat16) for _ in range(3))
        size = 3 * 3 * q.numel()
        results = []
        for one, blocks in itertools.product(fitting, BLOCKS):
            if one.head_dim == width:
                tiles = dataclasses.replace(one, blocks=blocks)
                results.append((gb_per_s(clock, size, functools.partial(quantized, q, k, v, tiles=tiles)), tiles))
        for rate, tiles in sorted(results, key=lambda pair: pair[0])[-6:]:
            print(f"{rate:6.0f} GB/s {rate / copied:.2f} of copy  {tiles}", flush=True)
        for layout, rotate in (("bshd", True), ("bshd", False), ("bhsd", True)):
            q, k, v = (drawn(heads, TOKENS, width, layout, torch.bfloat16) for _ in range(3))
            rate = gb_per_s(clock, size, functools.partial(quantized, q, k, v, rotate=rotate))
            print(
                f"{rate:6.0f} GB/s {layout}, rotate {rotate}, shipped {tiles_for(architecture(q.device), width)}",
                flush=True,
            )
        v8 = v.to(torch.float8_e4m3fn)
        rate = gb_per_s(clock, 2 * v8.numel(), functools.partial(transposed, v8, dense(q, k)))
        print(f"{rate:6.0f} GB/s transposed alone, D {width}", flush=True)


if __name__ == "__main__":
    main()
