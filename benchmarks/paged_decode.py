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
import dataclasses
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from paged_decode_inputs import (
    STORES,
    Ask,
    Batch,
    Cache,
    Heads,
    ask,
    ask_fa3,
    batch_of,
    caches_of,
    error_of,
    over,
    some,
)

from attn_backends import cascade_attention
from attn_backends.bench.clock import Clock, clock_for
from attn_backends.bench.versions import clocks, device_name, versions
from attn_backends.call import Call
from attn_backends.host.dispatch import device_of
from attn_backends.registry.registry import default_registry

READ_LIMIT = 4350.0  # GB/s that an H200 reads
ROUNDS = 21
COMPILING_S, ALL_S = 75.0, 140.0
OURS, PEER = "paged_decode", "flashinfer"
SHAPES = (  # sequences, context, (query heads, KV heads, width)
    (64, 8192, (32, 8, 128)), (16, 4096, (32, 8, 128)), (1, 32768, (32, 8, 128)), (128, 2048, (64, 8, 128)),
    (8, 8192, (16, 16, 128)), (64, 4096, (64, 8, 64)),
)  # fmt: skip
TARGETS = {("bf16", 0): 0.98, ("bf16", 1): 1.1, ("bf16", 2): 1.2, **{("e4m3", index): 1.25 for index in range(6)}}
BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
SAME_KERNEL = (16, 32, 64, 128, 256)  # batches between these are served by one compiled kernel
HEADS: Heads = (32, 8, 128)
Shape = tuple[int, int, Heads]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where it runs and how large: `dry` makes everything tiny and puts `eager` in every backend's place."""

    device: torch.device
    dry: bool
    peer: frozenset[tuple[int, str]] = frozenset()  # width and format of the kernels that FlashInfer has compiled

    @property
    def rounds(self) -> int:
        return 2 if self.dry else ROUNDS

    def backend(self, name: str) -> str:
        return "eager" if self.dry else name

    def tokens(self, count: int) -> int:
        """So many tokens, or few."""
        return max(16, count // 256) if self.dry else count

    def sync(self) -> None:
        if not self.dry:
            torch.cuda.synchronize(self.device)


# What is timed


def timed(asks: dict[str, Callable[[], Any]], clock: Clock, bench: Bench) -> dict[str, list[float]]:
    """Milliseconds of every call, one of each per round."""
    taken: dict[str, list[float]] = {name: [] for name in asks}
    for _ in range(bench.rounds):
        for name, call in asks.items():
            taken[name].append(clock.sample(call, 1.0)[0])
    return taken


def spread(times: list[float]) -> dict[str, Any]:
    """Median and quartiles."""
    low, _middle, high = statistics.quantiles(times, n=4)
    return {"ms": statistics.median(times), "quartiles_ms": [low, high]}


def over_rounds(first: list[float], second: list[float]) -> dict[str, Any]:
    """first / second: of the medians, and the quartiles of the rounds' own ratios."""
    low, _middle, high = statistics.quantiles([a / b for a, b in zip(first, second, strict=True)], n=4)
    return {"ratio": statistics.median(first) / statistics.median(second), "quartiles": [low, high]}


def contenders(batch: Batch, caches: dict[str, Cache], bench: Bench, missing: dict[str, str]) -> dict[str, Ask]:
    """`store, backend` -> call, of those that answer; why the others do not goes into `missing`."""
    found: dict[str, Ask] = {}
    for store, cache in caches.items():
        makers: dict[str, Callable[[Cache], Ask]] = {OURS: lambda one: ask(bench.backend(OURS), batch, one)}
        if store in ("bf16", "e4m3"):
            if (batch.q.shape[-1], store) in bench.peer:
                makers[PEER] = lambda one: ask(bench.backend(PEER), batch, one)
            makers["fa3"] = lambda one: ask_fa3(batch, one)
        for name, make in makers.items():
            key = f"{store}, {name}"
            try:
                call = make(cache)
                call()
                bench.sync()
            except Exception as error:  # noqa: BLE001  # a peer may fail in any way
                missing[f"{key} {tuple(batch.q.shape)}"] = f"{type(error).__name__}: {error}"[:300]
            else:
                found[key] = call
    return found


def table_rows(index: int, clock: Clock, bench: Bench, missing: dict[str, str]) -> list[dict[str, Any]]:
    """Every format and backend on one shape."""
    sequences, context, heads = SHAPES[index]
    count, keys = (min(sequences, 3), bench.tokens(context)) if bench.dry else (sequences, context)
    batch, pages = batch_of((1,) * count, (keys,) * count, heads, bench.device)
    caches = caches_of(pages, heads, tuple(STORES), bench.device)
    asks = contenders(batch, caches, bench, missing)
    errors = {key: error_of(call(), batch, caches[key.split(", ")[0]]) for key, call in asks.items()}
    times = timed(asks, clock, bench)
    rows = []
    for key, taken in times.items():
        store, backend = key.split(", ")
        read = count * keys * caches[store].token_bytes
        row = {"shape": SHAPES[index], "store": store, "backend": backend, **spread(taken)}
        row |= {"kv_bytes": read, "error": errors[key]}
        row["kv_gbs"] = read / row["ms"] / 1e6
        row["of_read_limit"] = row["kv_gbs"] / READ_LIMIT
        if backend == OURS:
            row |= _beside_peers(store, index, times) | _beside_bytes(store, times, caches)
        rows.append(row)
    return rows


def _beside_peers(store: str, index: int, times: dict[str, list[float]]) -> dict[str, Any]:
    """The better peer's time over ours, and whether the target is met."""
    peers = {key.split(", ")[1]: taken for key, taken in times.items() if key.startswith(f"{store}, ")}
    own = peers.pop(OURS)
    if not peers:
        return {}
    better = min(peers, key=lambda name: statistics.median(peers[name]))
    found = over_rounds(peers[better], own)
    target = TARGETS.get((store, index))
    met = None if target is None else found["ratio"] >= target
    return {"better_peer": better, "over_peer": found, "target": target, "met": met}


def _beside_bytes(store: str, times: dict[str, list[float]], caches: dict[str, Cache]) -> dict[str, Any]:
    """Time over what the bytes predict from bf16's time."""
    if store == "bf16" or f"bf16, {OURS}" not in times:
        return {}
    found = over_rounds(times[f"{store}, {OURS}"], times[f"bf16, {OURS}"])
    share = caches[store].token_bytes / caches["bf16"].token_bytes
    return {"over_bf16": found, "bytes_of_bf16": share, "over_predicted": found["ratio"] / share}


def mixed_batch(clock: Clock, bench: Bench, missing: dict[str, str]) -> list[dict[str, Any]]:
    """One call over the chunk and the decodes, the two apart, and each alone."""
    chunk, context, decodes = bench.tokens(2048), bench.tokens(8192), 3 if bench.dry else 63
    batch, pages = batch_of((chunk, *(1,) * decodes), (context + chunk, *(context,) * decodes), HEADS, bench.device)
    rows = []
    for store, cache in caches_of(pages, HEADS, ("bf16", "e4m3"), bench.device).items():
        parts = {"together": batch, "chunk": some(batch, 0, 1), "decodes": some(batch, 1, 1 + decodes)}
        asks: dict[str, Ask] = {}
        for name, part in parts.items():
            asks |= {f"{key}, {name}": call for key, call in contenders(part, {store: cache}, bench, missing).items()}
        for backend in (OURS, PEER, "fa3"):
            first, second = (asks.get(f"{store}, {backend}, {name}") for name in ("chunk", "decodes"))
            if first is not None and second is not None:
                asks[f"{store}, {backend}, apart"] = lambda a=first, b=second: (a(), b())[1]
        errors = {
            key: max(error_of(call(), batch, cache, sequence) for sequence in (0, -1))
            for key, call in asks.items() if key.endswith("together")
        }  # fmt: skip
        times = timed(asks, clock, bench)
        for key, taken in times.items():
            _store, backend, what = key.split(", ")
            row = {"store": store, "backend": backend, "what": what, **spread(taken), "error": errors.get(key)}
            apart = times.get(f"{store}, {backend}, apart")
            if what == "together" and apart is not None:
                found = over_rounds(apart, taken)
                row |= {"apart_over_together": found, "target": 1.1, "met": found["ratio"] >= 1.1}
            rows.append(row)
    return rows


def cascade(clock: Clock, bench: Bench, missing: dict[str, str]) -> list[dict[str, Any]]:
    """`cascade_attention`, at once and from a graph, and plain decode of the same sequences."""
    rows = []
    for store in ("bf16", "e4m3"):
        batch, cache, together = cascade_of(store, bench.tokens(8192), bench.tokens(256), 3 if bench.dry else 32, bench)
        asks = contenders(batch, {store: cache}, bench, missing) | {f"{store}, cascade": together}
        errors = {key: error_of(call(), batch, cache) for key, call in asks.items()}
        graph = _as_graph(together, bench, missing, f"cascade {store}")
        if graph is not None:
            asks[f"{store}, cascade in a graph"] = graph
        times = timed(asks, clock, bench)
        for key, taken in times.items():
            row = {"store": store, "what": key.split(", ")[1], **spread(taken), "error": errors.get(key)}
            if "cascade" in key:
                found = over_rounds(times[f"{store}, {OURS}"], taken)
                row |= {"plain_over_this": found, "target": 3.0, "met": found["ratio"] >= 3.0}
            rows.append(row)
    return rows


def cascade_of(store: str, prefix: int, own: int, count: int, bench: Bench) -> tuple[Batch, Cache, Ask]:
    """(the sequences as a plain batch, its cache, the cascade over them)."""
    tables, pages = batch_of((1,) * (count + 1), (prefix, *(own,) * count), HEADS, bench.device)
    shared, tails = tables.table[:1].clone(), tables.table[1:, : own // 16].clone()
    batch = over((1,) * count, (prefix + own,) * count, HEADS, torch.cat([shared.expand(count, -1), tails], 1))
    cache = caches_of(pages, HEADS, (store,), bench.device)[store]
    prefix_lens, groups = (
        torch.tensor(numbers, dtype=torch.int32, device=bench.device) for numbers in ([prefix], [0, count])
    )
    seq_lens = torch.full((count,), own, dtype=torch.int32, device=bench.device)

    def together() -> Any:
        return cascade_attention(
            batch.q, cache.k, cache.v, backend=bench.backend(OURS), prefix_table=shared, prefix_lens=prefix_lens,
            block_table=tails, seq_lens=seq_lens, groups=groups, **cache.scaling,
        )  # fmt: skip

    return batch, cache, together


def _as_graph(call: Callable[[], Any], bench: Bench, missing: dict[str, str], name: str) -> Callable[[], Any] | None:
    """The call captured, where it can be."""
    if bench.dry:
        return call
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        bench.sync()
    except Exception as error:  # noqa: BLE001  # what cannot be captured is a finding
        missing[f"graph of {name}"] = f"{type(error).__name__}: {error}"[:300]
        return None
    return graph.replay


def batches(clock: Clock, bench: Bench, missing: dict[str, str]) -> list[dict[str, Any]]:
    """Time per step over batch sizes; how far it falls, or rises beyond its share, from one size to the next."""
    sizes, context = ((1, 2, 3), bench.tokens(4096)) if bench.dry else (BATCHES, 4096)
    whole, pages = batch_of((1,) * sizes[-1], (context,) * sizes[-1], HEADS, bench.device)
    rows = []
    for store, cache in caches_of(pages, HEADS, ("bf16", "e4m3"), bench.device).items():
        parts = {size: some(whole, 0, size) for size in sizes}
        asks = {str(size): ask(bench.backend(OURS), part, cache) for size, part in parts.items()}
        for size, part in parts.items():
            if error_of(asks[str(size)](), part, cache) > 0.02:
                missing[f"batches {store} {size}"] = "wrong"
        steps = [{"batch": int(name), **spread(taken)} for name, taken in timed(asks, clock, bench).items()]
        for step in steps:
            step["kv_gbs"] = step["batch"] * context * cache.token_bytes / step["ms"] / 1e6
        pairs = list(pairwise(steps))
        falls = min((after["ms"] / before["ms"], after["batch"]) for before, after in pairs)
        jumps = max((before["kv_gbs"] / after["kv_gbs"], after["batch"]) for before, after in pairs)
        rows.append({
            "store": store, "context": context, "steps": steps, "least_ratio": falls[0], "at_batch": falls[1],
            "target": 0.85, "met": falls[0] >= 0.85, "most_over_share": jumps[0], "most_over_share_at": jumps[1],
        })  # fmt: skip
    return rows


def graph_rows(_clock: Clock, bench: Bench, _missing: dict[str, str]) -> list[dict[str, Any]]:
    """The backend's own kernels, captured at one set of lengths and replayed at others."""
    if bench.dry:
        from attn_backends.backends.eager.adapter import run
    else:
        from attn_backends.backends.paged_decode.adapter import run
    longest = bench.tokens(100_000)
    batch, pages = batch_of((1, 1), (longest, longest), (8, 2, 128), bench.device)
    cache = caches_of(pages, (8, 2, 128), ("bf16",), bench.device)["bf16"]
    lengths = batch.arguments["seq_lens"]
    call = Call(
        q=batch.q, k=cache.k, v=cache.v, out=torch.full_like(batch.q, torch.nan), causal=True, softmax_scale=128**-0.5,
        phase="decode", block_table=batch.table, seq_lens=lengths, max_seqlen_q=1, max_seqlen_k=longest,
    )  # fmt: skip

    def at(chosen: tuple[int, int]) -> None:
        lengths.copy_(torch.tensor(chosen, dtype=torch.int32))

    at((bench.tokens(128), 1))
    run(call)
    bench.sync()
    replay: Callable[[], Any] = lambda: run(call)  # noqa: E731
    if not bench.dry:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(call)
        replay = graph.replay
    rows = []
    for chosen in ((longest, 17), (3, longest), (0, 1), (16, 16)):
        at(chosen)
        call.out.fill_(torch.nan)
        replay()
        eager = dataclasses.replace(call, out=torch.full_like(call.out, torch.nan))
        _eager(eager)
        bench.sync()
        difference = float((call.out.double() - eager.out.double()).abs().max() / eager.out.double().abs().max())
        here = dataclasses.replace(batch, keys=chosen)
        errors = [error_of(call.out, here, cache, sequence) for sequence in (0, 1) if chosen[sequence]]
        right = difference <= 0.02 and max(errors) <= 0.02
        rows.append({"lengths": chosen, "from_eager": difference, "error": max(errors), "met": right})
    return rows


def _eager(call: Call) -> None:
    from attn_backends.backends.eager.adapter import run

    run(call)


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
