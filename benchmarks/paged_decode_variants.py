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
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

import torch
from paged_decode_inputs import PAGE, STORES, Batch, Cache, Heads, batch_of, caches_of, error_of, over

from attn_backends.backends.paged_decode import launch as launching
from attn_backends.backends.paged_decode.attend import attend_split
from attn_backends.backends.paged_decode.configs import Config
from attn_backends.backends.paged_decode.operands import Operands, operands_of
from attn_backends.bench.clock import Clock
from attn_backends.call import Call
from attn_backends.host import fused_merge
from attn_backends.merge import merge_states

MERGES = ("ships", "second")
PROCESSES = 14
HOST_MS = 0.5  # of a launch, about
WRONG = 0.02  # relative error
DRY_SEQUENCES, DRY_TOKENS = 4, 128


class Tile(NamedTuple):
    """Tiles and launch options of a variant, those of a row of configs.toml.

    registers: whether the next tile of keys waits there
    rows: 0 is 64 where a prompt decides on the tiles, else 16
    maxnreg: registers of a thread at most, 0 for any
    combined: rows of a program of the second kernel, 0 for what ships
    """

    columns: int
    warps: int
    stages: int
    registers: bool = False
    rows: int = 0
    maxnreg: int = 0
    combined: int = 0

    def __str__(self) -> str:
        numbers = ",".join(str(int(one)) for one in self[:4])
        more = zip(("r", "n", "c"), self[4:], strict=True)
        return numbers + "".join(f" {letter}{one}" for letter, one in more if one)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """New tokens and keys of every sequence.

    one_for_all: every query sees every key, in a packed batch, and the LSE is asked for: the prefix of a cascade
    prefix: keys besides, which all sequences have in common
    cascade: whether those are attended once for all, and `keys` apart; variants are of the prefix, the rest is as shipped
    """

    new: tuple[int, ...]
    keys: tuple[int, ...]
    heads: Heads = (32, 8, 128)
    one_for_all: bool = False
    prefix: int = 0
    cascade: bool = False

    @property
    def tiled(self) -> Shape:
        """What tiles are for: the prefix of a cascade, else the shape itself."""
        if not self.cascade:
            return self
        return Shape(new=(sum(self.new),), keys=(self.prefix,), heads=self.heads, one_for_all=True)

    @property
    def mixed(self) -> bool:
        """Whether prompts decide on the tiles."""
        return max(self.tiled.new) > 1


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
    # a prefix that 32 decodes have in common: that part alone, the cascade, and every sequence by itself
    "prefix": Shape(new=(32,), keys=(8192,), one_for_all=True),
    "cascade": Shape(new=(1,) * 32, keys=(256,) * 32, prefix=8192, cascade=True),
    "plain": Shape(new=(1,) * 32, keys=(256,) * 32, prefix=8192),
}
_WIDE, _TALL, _LONG = Tile(64, 4, 3), Tile(64, 2, 3), Tile(128, 4, 3)
_EIGHT: dict[Tile, tuple[int, ...]] = {_WIDE: (3,), _TALL: (3, 4), Tile(64, 2, 4): (4,), _LONG: (2, 3)}
DECODE_TILES: dict[str, dict[Tile, tuple[int, ...]]] = {
    "bf16": {Tile(64, 4, 4): (2,), _WIDE: (2, 3), Tile(32, 2, 4): (3, 4), Tile(64, 4, 1, registers=True): (2,)},
    "e4m3": _EIGHT,
    "int8": _EIGHT,
    "int8 by token": _EIGHT,
    "V e4m3": {Tile(64, 4, 4): (2,), _WIDE: (3,), Tile(32, 2, 4): (4,), _LONG: (2,)},
}
_PROMPT = Tile(64, 4, 2)
_TALLER: dict[Tile, tuple[int, ...]] = {Tile(64, 8, 2, rows=128): (1,), Tile(64, 8, 3, rows=128): (1,)}
# Of one tile for a few rows of queries, many splits: how many, and how many rows the second kernel's programs have.
PREFIX_TILES: dict[Tile, tuple[int, ...]] = {
    **{_PROMPT._replace(combined=rows): (2,) for rows in (2, 8, 16)},
    _PROMPT: (1,), Tile(64, 4, 3): (1, 2), Tile(32, 4, 3): (2, 3), Tile(32, 4, 4): (3,), Tile(128, 4, 2): (1,), **_TALLER,
}  # fmt: skip
PROMPT_TILES: dict[str, dict[Tile, tuple[int, ...]]] = {
    "16 bits": {
        Tile(64, 4, 3): (2,), Tile(32, 4, 2): (3,), Tile(32, 4, 3, maxnreg=168): (3,), Tile(32, 4, 4): (3,), **_TALLER,
        Tile(128, 8, 2, rows=128): (1,),
    },
    "8 bits": {
        Tile(64, 4, 3): (2,), Tile(64, 4, 2, maxnreg=168): (3,), Tile(64, 4, 3, maxnreg=168): (3,),
        Tile(32, 4, 3, maxnreg=168): (3,), **_TALLER, Tile(128, 8, 2, rows=128): (1,),
    },
}  # fmt: skip


def default_tiles(shape: str, store: str) -> dict[Tile, tuple[int, ...]]:
    """Tiles worth a time there, with programs per multiprocessor."""
    made = SHAPES[shape]
    if made.tiled.one_for_all:
        return PREFIX_TILES
    if made.mixed:
        return PROMPT_TILES["16 bits" if store == "bf16" else "8 bits"]
    return DECODE_TILES[store]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A tile, None for what ships, the programs per multiprocessor, and how splits are merged."""

    tile: Tile | None
    programs: int = 0
    merge: str = "ships"

    @property
    def name(self) -> str:
        """`ships`, or `128,4,3,0 p2`; with the merge where that is not what ships."""
        tile = "ships" if self.tile is None else f"{self.tile} p{self.programs}"
        return tile if self.merge == "ships" else f"{tile} {self.merge}"

    def key(self, shape: str, store: str) -> str:
        """Of what has to be compiled for it: shapes may have the kernels of a tile in common, not of what ships."""
        if self.tile is None:
            return f"{shape} {store} {self.name}"
        made = SHAPES[shape].tiled
        room = max(16, 1 << (len(made.new) - 1).bit_length())
        whole = -(-(max(made.keys) + made.prefix) // PAGE) % 16 == 0
        called = f"{made.heads} {room} {whole} {max(made.new)} {len(set(made.new))} {made.one_for_all}"
        main = dataclasses.replace(self, programs=0, tile=self.tile._replace(combined=0))
        return f"{called} {store} {main.name}"

    def config(self, shape: Shape) -> Config | None:
        """A row of configs.toml for any call."""
        if self.tile is None:
            return None
        tile = self.tile
        return Config(
            arch=0, last_arch=999, bytes=2, stored=4, width=256, rows=tile.rows or (64 if shape.mixed else 16), columns=tile.columns,
            warps=tile.warps, stages=tile.stages, programs=self.programs or 2, registers=tile.registers, maxnreg=tile.maxnreg,
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
