"""What issue "Paged decode" asks paged_decode to show, in one run on one GPU, beside FlashInfer and FlashAttention-3.

    python benchmarks/paged_decode.py [--only table mixed cascade batches graph] [--out FILE] [--dry]

table    six decode shapes in every format of the cache, each beside the peers that take it; 8 bits beside what their bytes
         predict from 16
mixed    a chunk of 2048 new tokens over 8k and 63 decodes at 8k, in one call and apart
cascade  32 sequences of 256 tokens behind a common prefix of 8k, against plain decode of the same
batches  time per step from 1 to 256 sequences of 4k tokens
graph    captured at 128 tokens, replayed at 100,000

L2 cold, medians of rounds in which all contenders take turns. Kernels are compiled first, by processes side by side. Every
part saves what it has; one that fails is noted, and the next one runs. --dry: tiny shapes on a CPU, with `eager` in every
backend's place, to see that the script runs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from paged_decode_inputs import STORES, ask, batch_of, caches_of, some
from paged_decode_parts import (
    HEADS,
    OURS,
    PEER,
    READ_LIMIT,
    SAME_KERNEL,
    SHAPES,
    Bench,
    batches,
    cascade,
    cascade_of,
    graph_rows,
    mixed_batch,
    table_rows,
)

from attn_backends.bench.clock import Clock, clock_for
from attn_backends.bench.versions import clocks, device_name, versions
from attn_backends.host.dispatch import device_of
from attn_backends.registry.registry import default_registry

COMPILING_S, ALL_S = 75.0, 140.0


# Compiling, side by side


def jobs() -> Iterator[tuple[str, Any]]:
    """Every kernel that is going to be timed, the slowest to compile first."""
    yield from ((PEER, (width, store)) for width, store in ((128, "bf16"), (128, "e4m3"), (64, "bf16")))
    for index in range(len(SHAPES)):
        yield from (("table", (index, store)) for store in STORES)
    yield from ((part, store) for part in ("mixed", "cascade") for store in ("bf16", "e4m3"))
    yield from (("batches", (size, store)) for size in SAME_KERNEL for store in ("bf16", "e4m3"))


def compile_job(job: tuple[str, Any, bool]) -> tuple[str, Any, str]:
    """Run a short call of the same kind; (kind, what, the error or nothing)."""
    kind, what, dry = job
    device = torch.device("cpu") if dry else torch.device("cuda", 0)
    bench = Bench(device=device, dry=dry)
    try:
        _run_short(kind, what, bench)
        bench.sync()
    except Exception as error:  # noqa: BLE001  # the timed run will say it again
        return kind, what, f"{type(error).__name__}: {error}"[:200]
    return kind, what, ""


def _run_short(kind: str, what: Any, bench: Bench) -> None:
    """What a part times, but over few tokens: strides and counts differ in nothing that a kernel is compiled for."""
    short = bench.tokens(4096) if bench.dry else 256
    device, heads, backend = bench.device, HEADS, bench.backend(OURS)
    if kind == "cascade":
        cascade_of(what, short, short, 3 if bench.dry else 32, bench)[2]()
        return
    first, store = what if kind != "mixed" else (bench.tokens(2048), what)
    new: tuple[int, ...] = (1,) * 4
    if kind == PEER:
        backend, heads = bench.backend(PEER), (32, 8, first)
    elif kind == "table":
        heads, new = SHAPES[first][2], (1,) * SHAPES[first][0]
    elif kind == "batches":
        new = (1,) * first
    else:
        new = (first, *(1,) * 63)
    batch, pages = batch_of(new, tuple(short + one - 1 if one > 1 else short for one in new), heads, device)
    cache = caches_of(pages, heads, (store,), device)[store]
    ask(backend, batch, cache)()
    if kind == "mixed":
        ask(backend, some(batch, 0, 1), cache)()


def compiled(dry: bool) -> dict[str, Any]:
    """Compile everything; what was not done in time, or failed, and whether FlashInfer's kernels are there."""
    started = time.perf_counter()
    todo = [(*job, dry) for job in jobs()]
    done: list[tuple[str, Any, str]] = []
    if dry:
        done = [compile_job(job) for job in todo[:4] + todo[-14:]]
    else:
        pool = multiprocessing.get_context("spawn").Pool(14)
        arriving = pool.imap_unordered(compile_job, todo)
        try:
            while len(done) < len(todo):
                done.append(arriving.next(timeout=COMPILING_S - (time.perf_counter() - started)))
        except multiprocessing.TimeoutError:
            pass
        pool.terminate()
    good = [what for kind, what, error in done if kind == PEER and not error]
    return {
        "seconds": time.perf_counter() - started, "jobs": len(todo), "done": len(done), "peer": good,
        "failed": {f"{kind} {what}": error for kind, what, error in done if error},
    }  # fmt: skip


# The run


PARTS: dict[str, Callable[[Clock, Bench, dict[str, str]], list[dict[str, Any]]]] = {
    "mixed": mixed_batch, "cascade": cascade, "batches": batches, "graph": graph_rows,
}  # fmt: skip


def lines_of(part: str, rows: list[dict[str, Any]]) -> Iterator[str]:
    """What is printed about a part."""
    if part in ("mixed", "cascade"):
        yield from gains(part, rows)
    for row in rows:
        if part == "table" and row["backend"] == OURS:
            sequences, context, (heads, kv_heads, width) = row["shape"]
            peers = [one for one in rows if one["store"] == row["store"] and one["backend"] != OURS]
            beside = " ".join(f"{one['backend'][:2]} {one['kv_gbs']:.0f}" for one in peers)
            ratio = f"x{row['over_peer']['ratio']:.2f}/{row['target']}" if "over_peer" in row else ""
            shares = f"pred {row['over_predicted']:.2f}" if "over_predicted" in row else ""
            name = f"{sequences},{context},{heads}/{kv_heads},{width} {row['store']}"
            yield f"{name}: {row['kv_gbs']:.0f} {beside} {ratio} {shares} e{row['error']:.0e}"
        elif part == "batches":
            times = " ".join(f"{step['batch']}:{step['ms'] * 1e3:.0f}" for step in row["steps"][::3])
            yield f"batches {row['store']} least {row['least_ratio']:.2f}@{row['at_batch']} over share {row['most_over_share']:.2f}@{row['most_over_share_at']} us {times}"
        elif part == "graph":
            yield f"graph {row['lengths']} from eager {row['from_eager']:.1e} error {row['error']:.1e} {row['met']}"


def gains(part: str, rows: list[dict[str, Any]]) -> Iterator[str]:
    """One line per format and backend: microseconds of everything, and what doing it together gains."""
    names = dict.fromkeys((row["store"], row.get("backend", "")) for row in rows)
    for store, backend in names:
        own = [row for row in rows if (row["store"], row.get("backend", "")) == (store, backend)]
        times = " ".join(f"{row['what']} {row['ms'] * 1e3:.0f}" for row in own)
        ratios = [row.get("apart_over_together") or row.get("plain_over_this") for row in own]
        worst = max(row["error"] or 0.0 for row in own)
        yield f"{part} {store} {backend} us: {times} x{[round(one['ratio'], 2) for one in ratios if one]} e{worst:.0e}"


def main() -> int:
    """Compile, time every part, print and save after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=["table", *PARTS], default=["table", *PARTS])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200/paged_decode.json"))
    parser.add_argument("--dry", action="store_true")
    given = parser.parse_args()
    started = time.perf_counter()
    work = compiled(given.dry)
    device = torch.device("cpu") if given.dry else torch.device("cuda", torch.cuda.current_device())
    bench = Bench(device=device, dry=given.dry, peer=frozenset(work["peer"]))
    clock = clock_for(device, device_of(device))
    missing: dict[str, str] = {}
    record: dict[str, Any] = {
        "schema": "attn.paged_decode/1", "command": "python " + " ".join(sys.argv), "device": device_name(device),
        "versions": versions(default_registry().snapshot()), "clocks": {"before": clocks(device)}, "method": clock.method,
        "rounds": bench.rounds, "read_limit_gbs": READ_LIMIT, "compiling": work, "missing": missing, "parts": {},
    }  # fmt: skip
    print(f"compiled {work['done']}/{work['jobs']} in {work['seconds']:.0f}s, failed: {str(work['failed'])[:300]}")

    def save() -> None:
        record["seconds"] = time.perf_counter() - started
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    def measure(part: str, ask_rows: Callable[[], list[dict[str, Any]]]) -> None:
        if time.perf_counter() - started > ALL_S:
            missing[part] = "no time left"
            return
        try:
            rows = ask_rows()
        except Exception as error:  # noqa: BLE001  # the other parts are to run
            missing[part] = f"{type(error).__name__}: {error}"[:500]
            return
        finally:
            if not given.dry:
                torch.cuda.empty_cache()
            save()
        record["parts"].setdefault(part, []).extend(rows)
        print("\n".join(lines_of(part, rows)), flush=True)

    with torch.no_grad():  # not inference mode, whose tensors FlashInfer's lengths are read from again at every call
        for index in range(len(SHAPES) if "table" in given.only else 0):
            measure("table", lambda: table_rows(index, clock, bench, missing))  # noqa: B023  # called at once
        for part, run in PARTS.items():
            if part in given.only:
                measure(part, lambda: run(clock, bench, missing))  # noqa: B023
    record["clocks"]["after"] = clocks(device)
    record["first_row"] = first_row(record["parts"].get("table", []))
    save()
    print(record["first_row"], f"{record['seconds']:.0f}s")
    for name, reason in list(missing.items())[:6]:
        print(f"- {name}: {reason[:120]}")
    return 0


def first_row(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What is asked of fp8 on the first shape: 3.5 TB/s, and at most 0.62 of bf16's time."""
    found = [row for row in rows if row["shape"] == SHAPES[0] and row["backend"] == OURS and row["store"] == "e4m3"]
    if not found or "over_bf16" not in found[0]:
        return {}
    speed, share = found[0]["kv_gbs"], found[0]["over_bf16"]["ratio"]
    return {"fp8_gbs": round(speed), "fp8_over_bf16": round(share, 3), "met": speed >= 3500 and share <= 0.62}


if __name__ == "__main__":
    raise SystemExit(main())
