"""Files of measured times that nobody measured, for the small registries of `scenes`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attn_backends import Device, Registry, Request
from attn_backends.selector.measured.bucket import bucket_of
from attn_backends.selector.measured.database import Writer, read_rows
from attn_backends.selector.measured.machine import BackendKey, Machine, device_key
from attn_backends.selector.measured.row import OK, Row
from attn_backends.selector.measured.store import StoredTimes
from tests.selector.scenes import request

HERE = Device(kind="cuda", name="H200", arch=(9, 0), num_sms=132)
MACHINE = Machine.here()
AT = "2026-01-02T03:04:05+00:00"


def row(made: Registry, name: str, ms: Any, asked: Request | None = None, **changes: Any) -> Row:
    """A row of this backend for the bucket of a request; `ms` None is a crash."""
    key = BackendKey.of(made.snapshot().get(name))
    times = {"status": "crash", "why": "it died"} if ms is None else {"status": OK, "ms": ms, "q25": ms, "q75": ms}
    fields = {
        "bucket": bucket_of(asked or request()), "backend": name, "version": key.version, "sources": key.sources,
        "samples": 5, "at": AT, **times,
    }  # fmt: skip
    return Row(**{**fields, **changes})


def written(path: Path, rows: list[Row], device: Device = HERE, machine: Machine = MACHINE) -> Path:
    """The file with these rows."""
    with Writer(path, device_key(device), machine) as writer:
        writer.put(rows)
    return path


def stored(path: Path, machine: Machine = MACHINE) -> StoredTimes:
    """What ranking makes of a file."""
    return StoredTimes.of(read_rows(path, machine), machine)
