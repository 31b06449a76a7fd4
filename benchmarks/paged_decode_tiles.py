"""Which tiles of paged_decode are fastest, and which way to merge: variants on decodes and a mixed batch, on one GPU.

    python benchmarks/paged_decode_tiles.py [--shapes 16x4k 8x8k-mha] [--stores bf16 e4m3] [--tiles 128,4,3,0:2 64,2,3,0:3,4]
        [--merges ships second] [--graph] [--carveout] [--limits] [--seconds 55] [--out FILE] [--dry]

A variant is `keys,warps,stages,registers[,rows,maxnreg,combined]` of a tile (paged_decode_variants.py has the words, 0 is what is
usual) and the programs per multiprocessor that keys are split for; `ships` is the row of configs.toml. It is compiled by processes
side by side; what is not ready by half the time, or does not fit, is left out and named in the file. Pages of 16 tokens in random
order, fresh random data, medians of interleaved rounds by `CudaClock`. Before a variant is timed, last tokens of its first and last
sequence are compared with float64, all tokens with those of the first variant. The best rows go into configs.toml by hand.
A cascade is timed as a whole, its variants are of the prefix; beside it stands `plain` over its best, beside a mixed batch `chunk` and
`63x8k` over its best, where those shapes are asked for as well: graphs where there are any.

merges     of the splits: as shipped, by the last split wherever its rows are few; always by a second kernel
graph      time a graph of every variant as well
carveout   ask for all shared memory that a multiprocessor has, which Triton does for blocks of more than 48 KiB alone
limits     time a kernel that reads alone, and `copy_` of half as much, at the sizes of small caches: with lines of the L2 cache changed, as
           the clock leaves them, and clean
dry        a CPU, tiny contexts, one round, nothing compiled ahead: TRITON_INTERPRET=1
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from paged_decode_reading import limits
from paged_decode_timing import call_of, compile_all, measured
from paged_decode_variants import MERGES, SHAPES, Tile, default_tiles, variants_of

from attn_backends.bench.clock import clock_for
from attn_backends.bench.versions import clocks, device_name, versions
from attn_backends.host.dispatch import device_of
from attn_backends.registry.registry import default_registry

STORES = ("bf16", "e4m3", "int8", "int8 by token", "V e4m3")
SHOWN = 7  # variants of a line


def main() -> int:
    """Compile, time until there is no time left, print the best of every shape, write the file."""
    given = _arguments()
    started = time.perf_counter()
    device = torch.device("cpu") if given.dry else torch.device("cuda", torch.cuda.current_device())
    tiles: dict[Tile, tuple[int, ...]] = dict(given.tiles) if given.tiles else {}
    asked = {
        (shape, store): variants_of(shape, tiles or default_tiles(shape, store), given.merges)
        for shape in given.shapes
        for store in given.stores
    }  # fmt: skip
    compiling = {} if given.dry else compile_all(asked, given.seconds / 2)
    print(f"compiled {compiling.get('done')}/{compiling.get('jobs')} in {time.perf_counter() - started:.0f}s")
    clock = clock_for(device, device_of(device))
    record: dict[str, Any] = {
        "schema": "attn.paged_decode_tiles/2", "command": "python " + " ".join(sys.argv), "device": device_name(device),
        "versions": versions(default_registry().snapshot()), "clocks": clocks(device), "method": clock.method, "rounds": given.rounds,
        "carveout": given.carveout, "compiling": compiling, "missing": {}, "rows": [],
    }  # fmt: skip
    if given.limits:
        record["limits"] = limits(device, given.rounds)
        print("\n".join(str(row) for row in record["limits"]), flush=True)
    for (shape, store), variants in asked.items():
        if time.perf_counter() - started > given.seconds:
            record["missing"][f"{shape} {store}"] = "no time left"
            continue
        ready = [one for one in variants if one.key(shape, store) not in compiling.get("left_out", {})]
        rows, failed = measured(shape, call_of(shape, store, device, dry=given.dry), ready, clock, given)
        record["missing"] |= {f"{shape} {store} {name}": reason for name, reason in failed.items()}
        record["rows"] += [{"shape": shape, "store": store, **row} for row in rows]
        print(line_of(shape, store, rows), flush=True)
        if not given.dry:
            torch.cuda.empty_cache()
    record["ratios"] = ratios(record["rows"])
    print("\n".join(f"{name}: {ratio:.3f}" for name, ratio in record["ratios"].items()))
    record["seconds"] = time.perf_counter() - started
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for name, reason in list(record["missing"].items())[:6]:
        print(f"- {name}: {reason[:120]}")
    print(f"{record['seconds']:.0f}s")
    return 0


def line_of(shape: str, store: str, rows: list[dict[str, Any]]) -> str:
    """What ships, then the fastest: microseconds, GB/s of KV, the graph's microseconds, blocks that fit a multiprocessor."""
    best = sorted(rows, key=lambda row: (row["variant"] != "ships", taken(row)))[:SHOWN]

    def told(row: dict[str, Any]) -> str:
        graph = f" graph {row['graph_ms'] * 1e3:.1f}" if row.get("graph_ms") else ""
        return f"{row['variant']}: {row['ms'] * 1e3:.1f} us {row['kv_gbs']:.0f}{graph} x{row.get('resident', '?')}"

    return f"{shape} {store} e{max((row['error'] for row in rows), default=0):.0e}: " + " | ".join(map(told, best))


def taken(row: dict[str, Any]) -> float:
    """Milliseconds of a variant, of its graph where there is one."""
    return float(row.get("graph_ms") or row["ms"])


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """What a shape takes apart over what it takes together, the best variant of each."""
    best: dict[tuple[str, str], float] = {}
    for row in rows:
        key = row["store"], row["shape"]
        best[key] = min(taken(row), best.get(key, taken(row)))
    found = {}
    for together, apart in (("mixed", ("chunk", "63x8k")), ("cascade", ("plain",))):
        for store in dict.fromkeys(row["store"] for row in rows):
            if all((store, shape) in best for shape in (together, *apart)):
                name = f"{store}, {' + '.join(apart)} over {together}"
                found[name] = sum(best[store, shape] for shape in apart) / best[store, together]
    return found


def _tile(text: str) -> tuple[Tile, tuple[int, ...]]:
    tile, _, programs = text.partition(":")
    columns, warps, stages, registers, *more = map(int, tile.split(","))
    return Tile(columns, warps, stages, bool(registers), *more), tuple(map(int, programs.split(",")))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shapes", nargs="+", default=["1x32k", "16x4k", "8x8k-mha"], choices=list(SHAPES), metavar="SHAPE"
    )
    parser.add_argument("--stores", nargs="+", default=["bf16", "e4m3", "int8 by token"], choices=STORES)
    parser.add_argument(
        "--tiles",
        nargs="+",
        type=_tile,
        default=[],
        help="keys,warps,stages,registers[,rows,maxnreg,combined]:programs[,programs]",
    )
    parser.add_argument("--merges", nargs="+", default=["ships"], choices=MERGES)
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--carveout", action="store_true")
    parser.add_argument("--limits", action="store_true")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=55.0)
    parser.add_argument("--out", type=Path, default=Path("build/paged_decode-tiles.json"))
    parser.add_argument("--dry", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
