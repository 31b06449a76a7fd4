"""The measured times of this machine, as ranking uses them by default: read at the first decision, once per process.

`ATTN_BACKENDS_MEASUREMENTS` names another file, or 0 for none.
"""

from __future__ import annotations

from pathlib import Path

from attn_backends.registry.knobs import current_knobs
from attn_backends.selector.times import NO_TIMES, Measurements


def machine_times() -> Measurements:
    """What was measured here; the neutral store where there is nothing."""
    path = database_path()
    return NO_TIMES if path is None or not path.exists() else stored_times(path)


def stored_times(path: Path) -> Measurements:
    """The times of one file, as it is now. Never raises: what cannot be read is told of, and counts for nothing."""
    from attn_backends.selector.measured.database import read_rows
    from attn_backends.selector.measured.machine import Machine
    from attn_backends.selector.measured.store import StoredTimes

    machine = Machine.here()
    return StoredTimes.of(read_rows(path, machine), machine)


def database_path() -> Path | None:
    """The file that the knob names, else the user's own; None where the knob says that there is none."""
    named = current_knobs().measurements
    if named == "0":
        return None
    if named:
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_data_dir("attn-backends")) / "measurements.sqlite"
