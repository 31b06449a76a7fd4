"""Results files that no run made: cells of the real suites with times as told."""

from __future__ import annotations

from attn_backends import Device
from attn_backends.bench.cell_run import cell_record
from attn_backends.bench.results import OK, SCHEMA, Json, Results
from attn_backends.bench.suites import read_suite
from attn_backends.bench.summary import Summary

H200 = Device.pretend("h200")


def times(milliseconds: float, spread: float = 0.005) -> Json:
    """A summary around a median."""
    values = [milliseconds * (1 + spread * place) for place in (-1, -0.5, 0, 0.5, 1)]
    return Summary.of(values).to_json()


def timed(milliseconds: float, record: Json, spread: float = 0.005) -> Json:
    """An outcome with these times."""
    seconds = milliseconds / 1e3
    return {
        "status": OK, "device_ms": times(milliseconds, spread), "host_ms": times(0.02), "version": "1.0.0",
        "tflops": record["flops"] / seconds / 1e12, "kv_gbs": record["kv_bytes"] / seconds / 1e9,
        "of_the_floor": record["floor"]["seconds"] / seconds, "sources": "0" * 16, "command": 0, "predicted_ms": None,
        "numerics": "exact", "decision": "0" * 16, "error": {"whole": 0.002, "worst_row": 0.004, "limit": 0.01},
        "first_call_s": 0.1, "conversions": [],
    }  # fmt: skip


def results(suite: str, told: dict[str, dict[str, float | Json]], **head: object) -> Results:
    """A file of a full-size suite on an H200: milliseconds (or a whole outcome) by cell and backend."""
    made = read_suite(suite)
    cells = {cell.id: cell for cell in made.cells}
    records = {}
    for name, by_backend in told.items():
        record = cell_record(cells[name], H200)
        found = {
            backend: timed(value, record) if isinstance(value, int | float) else value
            for backend, value in by_backend.items()
        }
        records[name] = {**record, "results": found}
    told_head = {
        "schema": SCHEMA, "suite": suite, "doc": made.doc, "metric": made.metric, "axis": made.axis, "size": "full",
        "device": H200.to_json(), "device_name": "NVIDIA H200", "versions": {"torch": "2.11.0", "triton": "3.6.0"}, "seed": 1,
        "method": "CUDA events", "commands": [f"attn-backends bench --suite {suite}"], "started": "2026-01-02T03:04:05+00:00",
        "seconds": 60.0, "clocks": {}, "void": None, "peers": None, **head,
    }  # fmt: skip
    return Results(told_head, records)
