"""The suite `overhead`: host time of the machinery, and of every backend on a tensor of a few elements.

Its rows have the form of cells, with times in microseconds under `host_ms` turned into milliseconds like all others. What
is no backend (torch's own call, the machinery) stands in the backend's place under its own name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from attn_backends.api import attention
from attn_backends.bench import machinery
from attn_backends.bench.contender import failure
from attn_backends.bench.host_time import host_times
from attn_backends.bench.results import OK, REFUSED, Json
from attn_backends.bench.summary import Summary
from attn_backends.errors import AttnBackendsError
from attn_backends.host import dispatch
from attn_backends.host.arguments import arguments
from attn_backends.registry.registry import Snapshot

MACHINERY, TORCH = "attn-backends", "torch SDPA"
PER_BACKEND = ("attention()", "decision.load()", "kernel alone")
SIZES = {"full": (15, 1000), "small": (3, 20)}  # rounds, calls per round
PATHS = {  # name of a cell -> (who stands for it, key of `cached_paths`)
    "torch's own call": (TORCH, "sdpa"),
    "select, cached": (MACHINERY, "select_cached"),
    "attention() around nothing": (MACHINERY, "attention_around_nothing"),
    "bound call around nothing": (MACHINERY, "bound_fast"),
    "count in the ledger": (MACHINERY, "ledger_step"),
    "allocate the output": (MACHINERY, "allocate_output"),
}


def overhead_cells(
    backends: Sequence[str], device: torch.device, size: str, snapshot: Snapshot, watch: Callable[[str], None]
) -> list[Json]:
    """Every cell of the suite."""
    rounds, calls = SIZES[size]
    watch("cached paths")
    paths = machinery.cached_paths(rounds=rounds, calls=calls)
    cells = [_cell(name, {who: _record(paths[key])}) for name, (who, key) in PATHS.items()]
    watch("uncached selection, fresh processes")
    cells += [
        _cell("select, uncached, 15 backends", {MACHINERY: _record(machinery.uncached(rounds=rounds))}),
        _cell("the same, every reason read", {MACHINERY: _record(machinery.uncached(rounds=rounds, read=True))}),
        _cell(
            "import attn_backends", {MACHINERY: _record([ms * 1e3 for ms in machinery.fresh_import(min(7, rounds))])}
        ),
        _cell("attn-backends list", {MACHINERY: _record([ms * 1e3 for ms in machinery.fresh_list(min(7, rounds))])}),
    ]
    watch("backends on tiny tensors")
    return cells + _backend_cells(backends, device, snapshot, rounds, calls)


def _backend_cells(
    backends: Sequence[str], device: torch.device, snapshot: Snapshot, rounds: int, calls: int
) -> list[Json]:
    """Three ways to call each backend on the same tiny tensors, all in turn."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    q = torch.randn(1, 16, 1, 64, device=device, dtype=dtype)
    refused: dict[str, Json] = {}
    ways: dict[str, Callable[[], object]] = {}
    with torch.no_grad():
        for name in backends:
            try:
                ways |= {f"{name}\n{way}": call for way, call in _ways(name, q).items()}
            except AttnBackendsError as error:
                refused[name] = {"status": REFUSED, "why": str(error).splitlines()[0]}
            except Exception as error:  # noqa: BLE001  # whatever a backend raises is its result
                refused[name] = failure(error)
        times = host_times(ways, rounds=rounds, calls=calls)
    cells = []
    for way in PER_BACKEND:
        results = {name: refused.get(name) or _record(times[f"{name}\n{way}"]) for name in backends}
        versions = {name: {**result, "version": snapshot.get(name).version} for name, result in results.items()}
        cells.append(_cell(f"{way} on tiny tensors", versions))
    return cells


def _ways(name: str, q: torch.Tensor) -> dict[str, Callable[[], object]]:
    """`attention()`, the loaded kernel, and the backend's own callable on a call that is made already."""
    attention(q, q, q, backend=name)
    given = arguments({"backend": name})
    bound = dispatch.find_bound(q, q, q, given)
    kernel = bound.decision.load()
    kernel(q, q, q)
    call = bound.call(q, q, q, given)
    bound.run(call)
    return {
        PER_BACKEND[0]: lambda: attention(q, q, q, backend=name),
        PER_BACKEND[1]: lambda: kernel(q, q, q),
        PER_BACKEND[2]: lambda: bound.loaded.run(call),
    }


def _record(microseconds: list[float]) -> Json:
    return {"status": OK, "device_ms": None, "host_ms": Summary.of([us / 1e3 for us in microseconds]).to_json()}


def _cell(name: str, results: dict[str, Json]) -> Json:
    return {
        "id": name, "panel": "host time", "x": name, "passes": "forward", "request": None, "sequences": [], "store": "dense",
        "floor": None, "flops": 0.0, "kv_bytes": 0.0, "results": results,
    }  # fmt: skip
