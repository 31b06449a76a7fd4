"""How benchmarks/paged_decode_tiles.py times variants: calls of every shape, compiled side by side, checked, then timed in turns."""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import functools
import multiprocessing
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from paged_decode_inputs import PAGE, STORES, Batch, Cache, batch_of, caches_of, error_of, over
from paged_decode_variants import SHAPES, Shape, Variant

from attn_backends.backends.paged_decode import launch as launching
from attn_backends.backends.paged_decode.attend import attend_split
from attn_backends.backends.paged_decode.operands import Operands, operands_of
from attn_backends.bench.clock import Clock
from attn_backends.call import Call
from attn_backends.host import fused_merge
from attn_backends.merge import merge_states

PROCESSES = 14
HOST_MS = 0.5  # of a launch, about
WRONG = 0.02  # relative error
DRY_SEQUENCES, DRY_TOKENS = 4, 128


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """A call with what it is compared with, and the bytes of KV that it reads.

    call: of the prefix, in a cascade; own: of the sequences' own keys, else None
    """

    call: Call
    operands: Operands
    batch: Batch
    cache: Cache
    read: int
    own: Call | None = None


def call_of(shape: str, store: str, device: torch.device, *, dry: bool = False, empty: bool = False) -> Asked:
    """empty: a cache of whatever is in memory, and sequences of no keys: to compile."""
    made = SHAPES[shape]
    if dry:
        new, keys = (numbers[:DRY_SEQUENCES] for numbers in (made.new, made.keys))
        new, keys = tuple(min(one, 17) for one in new), tuple(max(17, one // DRY_TOKENS) for one in keys)
        made = dataclasses.replace(made, new=new, keys=keys, prefix=made.prefix // DRY_TOKENS // PAGE * PAGE)
    tables, pages = batch_of((*made.new, 1), (*made.keys, made.prefix), made.heads, device)
    shared, tails = tables.table[-1:, : made.prefix // PAGE], tables.table[:-1, : -(-max(made.keys) // PAGE)]
    keys = tuple(made.prefix + one for one in made.keys)
    whole = over(made.new, keys, made.heads, torch.cat([shared.expand(len(keys), -1), tails], 1))
    if device.type == "cpu":
        whole = dataclasses.replace(whole, q=whole.q.half())  # the interpreter is silently wrong in bfloat16
    cache = caches_of(1 if empty else pages, made.heads, (store,), device)[store]
    if empty:
        cache = _room(cache, pages)
    elif device.type == "cpu" and cache.k.dtype == torch.bfloat16:
        v = cache.v.half() if cache.v.element_size() > 1 else cache.v
        cache = dataclasses.replace(cache, k=cache.k.half(), v=v)
    own = None
    if made.cascade:
        call = _call(made.tiled, _packed(_of_queries(whole.q, made.tiled, shared.clone())), cache, store)
        own = _call(made, _of_queries(whole.q, made, tails.clone()), cache, store, lse=True)
        read = made.prefix + sum(made.keys)
    else:
        call = _call(made, _packed(whole) if made.one_for_all else whole, cache, store)
        read = sum(keys)
    if empty:
        for one in (call, own):
            if one is not None and one.seq_lens is not None:
                one.seq_lens.zero_()
    read *= cache.token_bytes
    return Asked(call=call, operands=operands_of(call), batch=whole, cache=cache, read=read, own=own)


def _of_queries(q: torch.Tensor, shape: Shape, table: torch.Tensor) -> Batch:
    """A batch of those queries over a table."""
    batch = over(shape.new, shape.keys, shape.heads, table)
    return dataclasses.replace(batch, q=q.reshape(batch.q.shape))


def _packed(batch: Batch) -> Batch:
    """Sequences of equally many queries, as a packed batch."""
    ends = torch.tensor([0, *batch.new]).cumsum(0).to(batch.q.device, torch.int32)
    packed = {"layout": "thd", "cu_seqlens_q": ends, "max_seqlen_q": max(batch.new)}
    return dataclasses.replace(batch, q=batch.q.flatten(0, 1), arguments=batch.arguments | packed)


def _call(shape: Shape, batch: Batch, cache: Cache, store: str, *, lse: bool = False) -> Call:
    q, heads = batch.q, shape.heads[0]
    k_format, v_format, _ = STORES[store]
    given: dict[str, Any] = {"max_seqlen_q": max(shape.new), **batch.arguments, **cache.scaling}
    if shape.one_for_all:
        given |= {"causal": False}
    if shape.one_for_all or lse:
        rows = (heads, q.shape[0]) if q.dim() == 3 else (q.shape[0], heads, q.shape[1])
        given |= {"lse": q.new_empty(rows, dtype=torch.float32)}
    phase = "mixed" if len(set(shape.new)) > 1 else "append" if max(shape.new) > 1 else "decode"
    return Call(
        q=q, k=cache.k, v=cache.v, out=torch.full_like(q, torch.nan), softmax_scale=shape.heads[2] ** -0.5,
        k_format=k_format, v_format=v_format, phase=phase, **given,
    )  # fmt: skip


def _room(cache: Cache, pages: int) -> Cache:
    def of(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.new_empty((pages, *tensor.shape[1:])) if tensor.dim() > 1 else tensor

    scaling = {name: of(one) if isinstance(one, torch.Tensor) else one for name, one in cache.scaling.items()}
    return Cache(k=of(cache.k), v=of(cache.v), scaling=scaling)


def launch(asked: Asked, shape: str, variant: Variant) -> torch.Tensor:
    """The result of a variant; of a cascade the prefix by it, the rest as shipped."""
    with ExitStack() as patched:
        if variant.tile is not None and variant.tile.combined:
            patched.enter_context(mock.patch.object(launching, "combined_rows", return_value=variant.tile.combined))
        launching.launch(asked.call, asked.operands, variant.config(SHAPES[shape]), merge=variant.merge != "second")
    own, call = asked.own, asked.call
    if own is None or own.lse is None or call.lse is None:
        return call.out
    launching.launch(own, operands_of(own))
    batch, heads, tokens = own.lse.shape
    lse = call.lse.view(heads, batch, tokens).transpose(0, 1)
    states = (call.out.view(own.out.shape), lse, own.out, own.lse)
    merge = fused_merge.merge if fused_merge.takes(states) else merge_states
    return merge(*states)[0]


def compile_all(asked: dict[tuple[str, str], list[Variant]], seconds: float) -> dict[str, Any]:
    """Compile what will be launched into Triton's cache on disk. `left_out`: what failed or was not ready in time, and why."""
    jobs = {
        one.key(shape, store): (shape, store, dataclasses.replace(one, programs=0))
        for (shape, store), variants in asked.items()
        for one in variants
    }
    pool = ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn"))
    pending = {pool.submit(_compile, job): key for key, job in jobs.items()}
    left_out = dict.fromkeys(jobs, "not compiled in time")
    with suppress(TimeoutError):
        for done in as_completed(pending, timeout=seconds):
            problem = done.result()
            left_out.pop(pending[done])
            if problem:
                left_out[pending[done]] = problem
    pool.shutdown(wait=False, cancel_futures=True)
    return {"jobs": len(jobs), "done": len(jobs) - len(left_out), "left_out": left_out}


def _compile(job: tuple[str, str, Variant]) -> str:
    shape, store, variant = job
    try:
        launch(call_of(shape, store, torch.device("cuda", 0), empty=True), shape, variant)
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001  # the others are to be compiled
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def measured(
    shape: str, asked: Asked, variants: list[Variant], clock: Clock, given: argparse.Namespace
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """(a row per variant, what was not timed and why)."""
    asks: dict[str, Callable[[], Any]] = {}
    rows: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    first: torch.Tensor | None = None
    for variant in variants:
        ask = functools.partial(launch, asked, shape, variant)
        try:
            row, out = _checked(asked, ask, carveout=given.carveout)
        except Exception as error:  # noqa: BLE001  # the others are to be timed
            failed[variant.name] = f"{type(error).__name__}: {error}"[:300]
            continue
        first = out.double() if first is None else first
        row["error"] = _most(row["error"], float((out.double() - first).norm() / first.norm()))
        if not row["error"] < WRONG:
            failed[variant.name] = f"wrong: {row['error']}"
            continue
        asks[variant.name], rows[variant.name] = ask, row
        if given.graph and not given.dry:
            asks[f"{variant.name} graph"] = _captured(ask).replay
    times = _timed(asks, clock, 1 if given.dry else given.rounds)
    found = []
    for name, row in rows.items():
        taken, replayed = times[name], times.get(f"{name} graph")
        low, _, high = statistics.quantiles(taken, n=4) if len(taken) > 1 else taken * 3
        ms = statistics.median(taken)
        graph = statistics.median(replayed) if replayed else None
        speed = asked.read / ms / 1e6
        found.append({"variant": name, "ms": ms, "iqr_ms": high - low, "graph_ms": graph, "kv_gbs": speed, **row})
    return found, failed


def _timed(asks: dict[str, Any], clock: Clock, rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in asks}
    for _ in range(rounds):
        for name, ask in asks.items():
            taken[name].append(clock.sample(ask, HOST_MS)[0])
    return taken


def _captured(ask: Any) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ask()
    return graph


def _checked(asked: Asked, ask: Any, *, carveout: bool) -> tuple[dict[str, Any], torch.Tensor]:
    """(the error of the first and the last sequence's last token at the second call and what the main kernel's blocks take, the result)."""
    kernels: list[Any] = []

    class Kept:
        """Keeps what was launched."""

        def __getitem__(self, grid: Any) -> Any:
            def launched(*arguments: Any, **options: Any) -> None:
                kernels.append(attend_split[grid](*arguments, **options))

            return launched

    asked.call.out.fill_(torch.nan)
    with mock.patch.object(launching, "attend_split", Kept()):
        ask()
    facts = _facts(kernels[0], carveout=carveout)
    asked.call.out.fill_(torch.nan)
    out = ask()
    errors = [error_of(out, asked.batch, asked.cache, sequence) for sequence in (0, -1)]
    return {"error": _most(*errors), **facts}, out


def _most(*errors: float) -> float:
    """The largest, nan where one is."""
    return float(torch.tensor(errors).max())


def _facts(kernel: Any, *, carveout: bool) -> dict[str, int]:
    """Registers, bytes spilled, shared bytes, and blocks that fit a multiprocessor at a time; nothing from the interpreter."""
    if kernel is None or not hasattr(kernel, "function"):
        return {}
    cuda, function = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(kernel.function)
    if carveout and (problem := cuda.cuFuncSetAttribute(function, _CARVEOUT, 100)):
        raise RuntimeError(f"cuFuncSetAttribute: {problem}")
    resident, shared = ctypes.c_int(0), kernel.metadata.shared
    threads = 32 * kernel.metadata.num_warps
    cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(ctypes.byref(resident), function, threads, ctypes.c_size_t(shared))
    return {"registers": kernel.n_regs, "spilled": kernel.n_spills, "shared": shared, "resident": resident.value}


_CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, in percent
