"""What benchmarks/paged_decode_tiles.py times: shapes, tiles, ways to merge; compiled side by side, then timed in turns."""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import functools
import multiprocessing
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from paged_decode_inputs import PAGE, STORES, Batch, Cache, Heads, batch_of, caches_of, error_of

from attn_backends.backends.paged_decode import launch as launching
from attn_backends.backends.paged_decode.attend import attend_split
from attn_backends.backends.paged_decode.configs import Config
from attn_backends.backends.paged_decode.operands import Operands, operands_of
from attn_backends.bench.clock import Clock
from attn_backends.call import Call

Tile = tuple[int, int, int, bool]  # keys, warps, stages, whether tiles wait in registers
MERGES = ("ships", "last", "second")
PROCESSES = 14
HOST_MS = 0.5  # of a launch, about
WRONG = 0.02  # relative error
DRY_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """New tokens and keys of every sequence."""

    new: tuple[int, ...]
    keys: tuple[int, ...]
    heads: Heads = (32, 8, 128)

    @property
    def mixed(self) -> bool:
        """Whether prompts decide on the tiles."""
        return max(self.new) > 1


def _decodes(count: int, keys: int, heads: Heads = (32, 8, 128)) -> Shape:
    return Shape(new=(1,) * count, keys=(keys,) * count, heads=heads)


_CHUNK = 2048
SHAPES = {
    "1x32k": _decodes(1, 32768),
    "16x4k": _decodes(16, 4096),
    "8x8k-mha": _decodes(8, 8192, (16, 16, 128)),
    "64x8k": _decodes(64, 8192),
    "64x4k-d64": _decodes(64, 4096, (64, 8, 64)),
    # slower than FlashInfer when a selection was judged by its regret
    "1x19k-d64": _decodes(1, 19220, (64, 8, 64)),
    "139x890": _decodes(139, 890, (1, 1, 128)),
    "19x7k-d64": _decodes(19, 7680, (4, 2, 64)),
    "65x12k-d64": _decodes(65, 12800, (8, 2, 64)),
    "1x600-d64": _decodes(1, 600, (16, 8, 64)),
    # lengths that no wave fits by itself
    "33-ragged": Shape(new=(1,) * 33, keys=tuple(100 + 7919 * place % 7900 for place in range(33))),
    # a chunk of a prompt and decodes, together and apart
    "mixed": Shape(new=(_CHUNK, *(1,) * 63), keys=(8192 + _CHUNK, *(8192,) * 63)),
    "chunk": Shape(new=(_CHUNK,), keys=(8192 + _CHUNK,)),
    "63x8k": _decodes(63, 8192),
}
_WIDE, _TALL, _LONG = (64, 4, 3, False), (64, 2, 3, False), (128, 4, 3, False)
_EIGHT: dict[Tile, tuple[int, ...]] = {_WIDE: (3,), _TALL: (3, 4), (64, 2, 4, False): (4,), _LONG: (2, 3)}
DEFAULT_TILES: dict[str, dict[Tile, tuple[int, ...]]] = {
    "bf16": {(64, 4, 4, False): (2,), _WIDE: (2, 3), (32, 2, 4, False): (3, 4), (64, 4, 1, True): (2,)},
    "e4m3": _EIGHT,
    "int8": _EIGHT,
    "int8 by token": _EIGHT,
    "V e4m3": {(64, 4, 4, False): (2,), _WIDE: (3,), (32, 2, 4, False): (4,), _LONG: (2,)},
}
PROMPT_TILES: dict[Tile, tuple[int, ...]] = {(64, 4, 2, False): (2,), (64, 4, 3, False): (2,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A tile, None for what ships, the programs per multiprocessor, and how splits are merged."""

    tile: Tile | None
    programs: int = 0
    merge: str = "ships"

    @property
    def name(self) -> str:
        """`ships`, or `128,4,3,0 p2`; with the merge where that is not what ships."""
        tile = "ships" if self.tile is None else ",".join(str(int(one)) for one in self.tile) + f" p{self.programs}"
        return tile if self.merge == "ships" else f"{tile} {self.merge}"

    def key(self, shape: str, store: str) -> str:
        """Of what has to be compiled for it: shapes may have the kernels of a tile in common, not of what ships."""
        if self.tile is None:
            return f"{shape} {store} {self.name}"
        made = SHAPES[shape]
        room = max(16, 1 << (len(made.new) - 1).bit_length())
        whole = -(-max(made.keys) // PAGE) % 16 == 0
        called = f"{made.heads} {room} {whole} {max(made.new)} {len(set(made.new))}"
        return f"{called} {store} {dataclasses.replace(self, programs=0).name}"

    def config(self, shape: Shape) -> Config | None:
        """A row of configs.toml for any call."""
        if self.tile is None:
            return None
        columns, warps, stages, registers = self.tile
        rows = 64 if shape.mixed else 16
        return Config(
            arch=0, last_arch=999, bytes=2, stored=4, width=256, rows=rows, columns=columns, warps=warps, stages=stages,
            programs=self.programs or 2, registers=registers,
        )  # fmt: skip


def variants_of(shape: str, tiles: dict[Tile, tuple[int, ...]], merges: list[str]) -> list[Variant]:
    """What ships, then every tile with every number of programs; each merged in every way asked for."""
    pairs = [(tile, programs) for tile, counts in tiles.items() for programs in counts]
    return [
        Variant(tile=tile, programs=programs, merge=merge)
        for merge in (merges[:1] if SHAPES[shape].mixed else merges)
        for tile, programs in [(None, 0), *pairs]
    ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """A call with what it is compared with, and the bytes of KV that it reads."""

    call: Call
    operands: Operands
    batch: Batch
    cache: Cache
    read: int


def call_of(shape: str, store: str, device: torch.device, *, dry: bool = False, empty: bool = False) -> Asked:
    """empty: a cache of whatever is in memory, and sequences of no keys: to compile."""
    made = SHAPES[shape]
    new, keys = made.new, made.keys
    if dry:
        new, keys = tuple(min(one, 17) for one in new), tuple(max(17, one // DRY_TOKENS) for one in keys)
    batch, pages = batch_of(new, keys, made.heads, device)
    if device.type == "cpu":
        batch = dataclasses.replace(batch, q=batch.q.half())  # the interpreter is silently wrong in bfloat16
    cache = caches_of(1 if empty else pages, made.heads, (store,), device)[store]
    if empty:
        cache = _room(cache, pages)
        batch.arguments["seq_lens"].zero_()
    elif device.type == "cpu" and cache.k.dtype == torch.bfloat16:
        v = cache.v.half() if cache.v.element_size() > 1 else cache.v
        cache = dataclasses.replace(cache, k=cache.k.half(), v=v)
    k_format, v_format, _ = STORES[store]
    given: dict[str, Any] = {"max_seqlen_q": max(new), **batch.arguments, **cache.scaling}
    call = Call(
        q=batch.q, k=cache.k, v=cache.v, out=torch.full_like(batch.q, torch.nan), softmax_scale=made.heads[2] ** -0.5,
        k_format=k_format, v_format=v_format, phase="mixed" if len(set(new)) > 1 else "append" if max(new) > 1 else "decode", **given,
    )  # fmt: skip
    return Asked(call=call, operands=operands_of(call), batch=batch, cache=cache, read=sum(keys) * cache.token_bytes)


def _room(cache: Cache, pages: int) -> Cache:
    def of(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.new_empty((pages, *tensor.shape[1:])) if tensor.dim() > 1 else tensor

    scaling = {name: of(one) if isinstance(one, torch.Tensor) else one for name, one in cache.scaling.items()}
    return Cache(k=of(cache.k), v=of(cache.v), scaling=scaling)


def launch(asked: Asked, shape: str, variant: Variant) -> None:
    """One call of a variant."""
    last = mock.patch.object(launching, "_TOO_NARROW", 0) if variant.merge == "last" else nullcontext()
    with last:
        launching.launch(asked.call, asked.operands, variant.config(SHAPES[shape]), merge=variant.merge != "second")


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
    asks: dict[str, Callable[[], None]] = {}
    rows: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    for variant in variants:
        ask = functools.partial(launch, asked, shape, variant)
        try:
            row = _checked(asked, ask, carveout=given.carveout)
        except Exception as error:  # noqa: BLE001  # the others are to be timed
            failed[variant.name] = f"{type(error).__name__}: {error}"[:300]
            continue
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


def _checked(asked: Asked, ask: Any, *, carveout: bool) -> dict[str, Any]:
    """The error of the last sequence's last token at the second call, and what the main kernel's blocks take."""
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
    ask()
    return {"error": error_of(asked.call.out, asked.batch, asked.cache), **facts}


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
