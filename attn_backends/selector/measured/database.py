"""The file of measured times: SQLite, many readers and writers at once, one transaction per bucket.

Two processes that measure the same bucket end with the rows of the later one, whole. Reading never fails a decision: a
file that is damaged, locked or of another version costs one warning, and no time counts.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attn_backends.errors import AttnBackendsError
from attn_backends.registry.telling import tell
from attn_backends.selector.measured.bucket import Bucket
from attn_backends.selector.measured.machine import Machine
from attn_backends.selector.measured.row import Row

if TYPE_CHECKING:
    import sqlite3

FORMAT = 1  # of the table, as SQLite's user_version
READ_WAIT, WRITE_WAIT = 0.25, 30.0  # seconds for a lock
_KEY = ("device", "driver", "torch", "triton", "backend", "version", "sources", "kind", "place")
_VALUES = ("status", "ms", "q25", "q75", "samples", "floor_ms", "why", "at")
_COLUMNS = (*_KEY, *_VALUES)
_TYPES = {"ms": "REAL", "q25": "REAL", "q75": "REAL", "samples": "INTEGER", "floor_ms": "REAL"}
_DECLARED = ", ".join(f"{name} {_TYPES.get(name, 'TEXT')}" for name in _COLUMNS)
_TABLE = f"CREATE TABLE IF NOT EXISTS times ({_DECLARED}, PRIMARY KEY ({', '.join(_KEY)})) WITHOUT ROWID"
_PUT = f"INSERT OR REPLACE INTO times ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608  # names of this file
_GET = (
    "SELECT backend, version, sources, kind, place, status, ms, q25, q75, samples, floor_ms, why, at, device FROM times "
    "WHERE driver = ? AND torch = ? AND triton = ? ORDER BY device, backend, version, sources, kind, place"
)


class DatabaseError(AttnBackendsError):
    """The file of measured times cannot be written."""


def read_rows(path: Path, machine: Machine) -> dict[str, list[Row]]:
    """Every possible row of this machine's software, by device; empty, with one warning, where the file is of no use."""
    if not path.exists():
        return {}
    import sqlite3

    try:
        with contextlib.closing(_reader(path)) as connection:
            _check_format(connection)
            found = connection.execute(_GET, (machine.driver, machine.torch, machine.triton)).fetchall()
        rows, strange = _readable(found)
    except (sqlite3.Error, OSError, ValueError, DatabaseError) as error:
        tell(
            logging.WARNING, "measured times: %s is of no use now (%s); ranking goes on without it",
            path.name, error,
        )  # fmt: skip
        return {}
    if strange:
        tell(
            logging.WARNING, "measured times: %s of %s rows in %s are ignored: no time of a kernel",
            strange, len(found), path.name,
        )  # fmt: skip
    return rows


class Writer:
    """An open file for rows of one device; `with` closes it. `wait`: seconds for a lock that somebody else holds."""

    def __init__(self, path: Path, device: str, machine: Machine, *, wait: float = WRITE_WAIT) -> None:
        self.path, self._device, self._machine = path, device, machine
        self._connection = _opened(path, wait)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def put(self, rows: Iterable[Row]) -> None:
        """Store rows in one transaction. Raises DatabaseError where the file stays locked, or the disk is full."""
        values = [self._values(row) for row in rows]
        with self._transaction():
            self._connection.executemany(_PUT, values)

    def rows(self) -> list[Row]:
        """What the file has of this device and software now, others' writing included."""
        return read_rows(self.path, self._machine).get(self._device, [])

    def forget(self) -> None:
        """Drop every row of this device and software. Raises DatabaseError like `put`."""
        machine = self._machine
        with self._transaction():
            self._connection.execute(
                "DELETE FROM times WHERE device = ? AND driver = ? AND torch = ? AND triton = ?",
                (self._device, machine.driver, machine.torch, machine.triton),
            )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        import sqlite3

        try:
            with self._connection:
                yield
        except sqlite3.Error as error:
            raise DatabaseError(f"{self.path.name} cannot be written: {error}") from None

    def _values(self, row: Row) -> tuple[Any, ...]:
        machine = self._machine
        return (
            self._device, machine.driver, machine.torch, machine.triton, row.backend, row.version, row.sources,
            row.bucket.kind, json.dumps(row.bucket.place), *[getattr(row, name) for name in _VALUES],
        )  # fmt: skip


def _opened(path: Path, wait: float) -> sqlite3.Connection:
    """The file for writing, made if need be; one that is no database is set aside and told of."""
    import sqlite3

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return _prepared(path, wait)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            aside = path.with_suffix(f".damaged-{os.getpid()}")
            _set_aside(path, aside)
            tell(logging.WARNING, "measured times: %s is damaged (%s); it is now %s", path.name, error, aside.name)
            return _prepared(path, wait)
    except (sqlite3.Error, OSError) as error:
        raise DatabaseError(f"{path.name} cannot be written: {error}; give another file with --database") from None


def _set_aside(path: Path, aside: Path) -> None:
    """The file and what SQLite keeps beside it, which would be taken for the new one's."""
    path.replace(aside)
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def _prepared(path: Path, wait: float) -> sqlite3.Connection:
    import sqlite3

    connection = sqlite3.connect(path, timeout=wait)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            with connection:
                connection.execute(_TABLE)
                connection.execute(f"PRAGMA user_version = {FORMAT}")
        _check_format(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_format(connection: sqlite3.Connection) -> None:
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found != FORMAT:
        raise DatabaseError(f"format {found}; this version reads {FORMAT}")


def _reader(path: Path) -> sqlite3.Connection:
    """Read only. In a folder where SQLite may write nothing, the file is read as it stands."""
    import sqlite3

    address = path.absolute().as_uri()
    connection = sqlite3.connect(f"{address}?mode=ro", uri=True, timeout=READ_WAIT)
    try:
        connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        if "locked" in str(error):
            raise
        return sqlite3.connect(f"{address}?mode=ro&immutable=1", uri=True, timeout=READ_WAIT)
    except BaseException:
        connection.close()
        raise
    return connection


def _readable(found: list[Any]) -> tuple[dict[str, list[Row]], int]:
    """(rows by device, how many could not be true)."""
    rows: dict[str, list[Row]] = {}
    count = 0
    for device, row in _each(found):
        if row is None or not row.possible():
            count += 1
        else:
            rows.setdefault(device, []).append(row)
    return rows, count


def _each(found: list[Any]) -> Iterator[tuple[str, Row | None]]:
    for backend, version, sources, kind, place, status, ms, q25, q75, samples, floor, why, at, device in found:
        where = _place(place)
        if where is None or not isinstance(kind, str) or not isinstance(device, str):
            yield "", None
            continue
        yield device, Row(
            bucket=Bucket(kind, where), backend=backend, version=version, sources=sources, status=status, ms=ms,
            q25=q25, q75=q75, samples=samples, floor_ms=floor, why=why, at=at,
        )  # fmt: skip


def _place(text: Any) -> tuple[int, ...] | None:
    try:
        place = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    return tuple(place) if isinstance(place, list) and all(type(one) is int for one in place) else None
