"""What benchmarks/paged_decode.py times, part by part: the table, a mixed batch, the cascade, batches, a graph.

Every part takes (clock, bench, missing) and returns its rows; what cannot be timed says why in `missing`.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from itertools import pairwise
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
from attn_backends.bench.clock import Clock
from attn_backends.call import Call

READ_LIMIT = 4350.0  # GB/s that an H200 reads
ROUNDS = 21
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
