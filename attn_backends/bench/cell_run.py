"""One cell: its inputs, every backend checked on them, then all that are right timed in turn; as one record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from attn_backends.bench.cell import Cell
from attn_backends.bench.clock import Clock
from attn_backends.bench.contender import Contender, contender, failure
from attn_backends.bench.inputs import Inputs, make_inputs
from attn_backends.bench.results import LOST, OK, Json
from attn_backends.bench.rounds import Repeats, take_rounds
from attn_backends.bench.summary import Summary
from attn_backends.registry.certificates import source_digest
from attn_backends.selector.cost import operations, traffic
from attn_backends.selector.cost.extent import extent_of
from attn_backends.selector.cost.floor import Floor, floor_of
from attn_backends.selector.cost.load import subject_of
from attn_backends.selector.cost.predict import predict

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.registry.manifest import Manifest
    from attn_backends.registry.registry import Snapshot

Watch = Callable[[str], None]  # told what is being done: "d128 s4096 causal: sdpa_flash"


def run_cell(
    cell: Cell, backends: Sequence[str], *, snapshot: Snapshot, facts: Device, device: torch.device, clock: Clock,
    seed: int, repeats: Repeats, watch: Watch,
) -> Json:  # fmt: skip
    """The record of a cell. Nothing that a backend raises comes out of here."""
    record = cell_record(cell, facts)
    results: dict[str, Json] = {}
    ready: list[Contender] = []
    try:
        inputs = make_inputs(cell, seed, device)
    except Exception as error:  # noqa: BLE001  # a cell that does not fit here is a result, and the rest goes on
        return {**record, "results": dict.fromkeys(backends, failure(error))}
    for name in backends:
        watch(f"{cell.id}: checking {name}")
        _prepare(name, cell, inputs, ready, results)
        if _lost(results):
            break
    if not _lost(results):
        watch(f"{cell.id}: timing {', '.join(one.name for one in ready)}")
        with torch.no_grad():
            results |= take_rounds(ready, clock, repeats)
    for one in ready:
        if one.name not in results and one.device_ms:
            results[one.name] = _timed(cell, one, record)
    for name, outcome in results.items():
        manifest = snapshot.get(name)
        outcome["sources"] = source_digest(manifest)[:16]  # figures of other sources are not gone on with
        outcome["predicted_ms"] = _predicted_ms(manifest, cell, facts)
    return {**record, "results": {name: results[name] for name in backends if name in results}}


def cell_record(cell: Cell, facts: Device) -> Json:
    """What a cell's record says beside its results."""
    request = cell.request()
    floor = floor_of(request, facts, sequences=cell.sequences, passes=cell.passes)
    extent = extent_of(request, cell.sequences)
    count = operations.backward_flops if cell.passes == "backward" else operations.forward_flops
    return {
        "id": cell.id, "panel": cell.panel, "x": cell.x, "passes": cell.passes, "request": request.to_json(),
        "sequences": [list(one) for one in cell.sequences], "store": cell.store.name, "floor": _floor_record(floor),
        "flops": float(count(request, extent.visible)), "kv_bytes": float(traffic.stored_kv_bytes(request, extent.keys)),
    }  # fmt: skip


def _floor_record(floor: Floor | None) -> Json | None:
    return None if floor is None else {**asdict(floor), "seconds": floor.seconds, "bound": floor.bound}


def _prepare(name: str, cell: Cell, inputs: Inputs, ready: list[Contender], results: dict[str, Json]) -> None:
    made = contender(name, cell, inputs)
    if isinstance(made, Contender):
        ready.append(made)
    else:
        results[name] = made
    if inputs.q.is_cuda and not _lost(results):
        torch.cuda.empty_cache()  # a checked backend's scratch memory is not the next one's lack of it


def _lost(results: dict[str, Json]) -> bool:
    return any(outcome["status"] == LOST for outcome in results.values())


def _timed(cell: Cell, one: Contender, record: Json) -> Json:
    device_ms, host_ms = Summary.of(one.device_ms), Summary.of(one.host_ms)
    seconds = device_ms.median / 1e3
    floor = record["floor"]
    facts = {name: value for name, value in one.facts.items() if name != "warm_host_ms"}
    return {
        "status": OK, "device_ms": device_ms.to_json(), "host_ms": host_ms.to_json(),
        "tflops": _rate(record["flops"], seconds, 1e12),
        "kv_gbs": _rate(record["kv_bytes"], seconds, 1e9) if cell.page_size is not None else None,
        "of_the_floor": None if floor is None else round(floor["seconds"] / seconds, 4), **facts,
    }  # fmt: skip


def _rate(amount: float, seconds: float, unit: float) -> float:
    return float(f"{amount / seconds / unit:.5g}")


def _predicted_ms(manifest: Manifest, cell: Cell, facts: Device) -> float | None:
    """What the cost model expects of the backend, on the cell's real lengths and for its passes alone."""
    subject = subject_of(cell.request(), facts, sequences=cell.sequences, passes=cell.passes)
    found = None if subject is None else predict(manifest, subject)
    return None if found is None else float(f"{found.seconds * 1e3:.5g}")
