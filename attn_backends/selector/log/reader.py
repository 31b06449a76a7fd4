"""Reads decision logs back: files or a whole folder, in the order of writing; filters; one decision by its id.

A log of a process that was killed, copied while it was written, or mixed with other people's files is still a log: what
is not a record is reported with file and line, and the rest is read. Light core and standard library only.
"""

from __future__ import annotations

import functools
import heapq
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO

from attn_backends.errors import AttnBackendsError
from attn_backends.selector.log.files import live_files, rotations, series_order
from attn_backends.selector.log.phrase import value_of
from attn_backends.selector.log.schema import SCHEMA, decision_schema
from attn_backends.selector.log.shape import misfit
from attn_backends.selector.log.since import moment

Record = dict[str, Any]
Source = str | os.PathLike[str]
_MERGED_AT_ONCE = 200  # one file of each series is open while series are merged


class UnknownIdError(AttnBackendsError):
    """No decision of the log has an id that starts like this."""


class AmbiguousIdError(AttnBackendsError):
    """Several decisions of the log have ids that start like this; `ids` lists them."""

    def __init__(self, message: str, ids: tuple[str, ...]) -> None:
        super().__init__(message)
        self.ids = ids


@dataclass(frozen=True, slots=True)
class Problem:
    """A line, or a file (line 0), that could not be read as decision records."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}" if self.line else f"{self.path}: {self.message}"


Report = Callable[[Problem], None]


def warn(problem: Problem) -> None:
    """Report a problem on the logger `attn_backends`; the default of `read`."""
    logging.getLogger("attn_backends").warning("decision log: %s", problem)


def read(sources: Source | Iterable[Source], *, report: Report = warn) -> Iterator[Record]:
    """Every record of a folder (all series in it, rotated files included) or of exactly the named files.

    Series of several processes are merged by time; beyond 200 of them, one follows the other. Lines that are no records
    go to `report`. Raises FileNotFoundError at once for a source that is not there.
    """
    named = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    series = list(chain.from_iterable(_series(os.fspath(source), report) for source in _by_series(named)))
    return chain.from_iterable(series) if len(series) > _MERGED_AT_ONCE else heapq.merge(*series, key=_time)


def keep(
    records: Iterable[Record],
    *,
    backend: str | None = None,
    code: str | None = None,
    rejected: str | None = None,
    phase: str | None = None,
    since: str | None = None,
) -> Iterator[Record]:
    """The records that match all that is given.

    `backend`: the chosen one, or `none`. `rejected`: a backend that was refused. `code`: a reason code or axis that
    some candidate (with `rejected`: that one) was refused for. `since`: ISO time (UTC unless it says otherwise), or an
    age such as `90s`, `30m`, `2h`, `7d`.
    """
    start = "" if since is None else moment(since)
    return (
        record
        for record in records
        if (backend is None or (record["backend"] or "none") == backend)
        and (phase is None or value_of(record["request"], "phase") == phase)
        and (since is None or _time(record) >= start)
        and ((code is None and rejected is None) or _refuses(record, code, rejected))
    )


def find(records: Iterable[Record], prefix: str) -> Record:
    """The last record of the one decision whose id starts with `prefix`.

    Raises UnknownIdError, or AmbiguousIdError when the prefix fits several decisions.
    """
    found: dict[str, Record] = {}
    count = 0
    for record in records:
        count += 1
        if record["id"].startswith(prefix.lower()):
            found[record["id"]] = record
    if not found:
        raise UnknownIdError(f"no decision id starts with {prefix!r}; {count} records were read")
    if len(found) > 1:
        ids = tuple(sorted(found))
        shown = ", ".join(ids[:8]) + (", ..." if len(ids) > 8 else "")
        raise AmbiguousIdError(f"{prefix!r} fits {len(ids)} decisions: {shown}; give more of the id", ids)
    return next(iter(found.values()))


def _by_series(sources: Iterable[Source]) -> list[str]:
    return sorted(dict.fromkeys(os.fspath(source) for source in sources), key=series_order)


def _series(source: str, report: Report) -> list[Iterator[Record]]:
    """A folder as one iterator per series; a file as one."""
    if os.path.isdir(source):
        return [_live_series(live, report) for live in live_files(source)]
    os.stat(source)
    return [_file(source, report)]


def _live_series(live: str, report: Report) -> Iterator[Record]:
    """Rotated files, oldest first, then the live one: opened first, so that a rotation meanwhile loses nothing."""
    with ExitStack() as stack:
        newest = _opened(live, stack)
        identity = os.fstat(newest.fileno()) if newest else None
        for _number, path in rotations(live):
            with ExitStack() as one:
                file = _opened(path, one)
                if file and not (identity and os.path.samestat(os.fstat(file.fileno()), identity)):
                    yield from _records(file, path, report)
        if newest:
            yield from _records(newest, live, report)


def _file(path: str, report: Report) -> Iterator[Record]:
    with open(path, "rb") as file:
        yield from _records(file, path, report)


def _opened(path: str, stack: ExitStack) -> BinaryIO | None:
    try:
        return stack.enter_context(open(path, "rb"))
    except FileNotFoundError:  # rotated or dropped by its writer since the folder was listed
        return None


def _records(file: BinaryIO, path: str, report: Report) -> Iterator[Record]:
    for number, line in enumerate(file, 1):
        try:
            yield parse_line(line)
        except ValueError as error:
            report(Problem(path, number, str(error) if line.endswith(b"\n") else f"the last line is cut off: {error}"))


def parse_line(line: bytes) -> Record:
    """One line as a record; raises ValueError with what is wrong with it."""
    try:
        record = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        found = record.get("schema") if isinstance(record, dict) else type(record).__name__
        raise ValueError(f"not a decision record: schema is {found!r}, expected {SCHEMA!r}")
    if problem := misfit(record, _schema()):
        raise ValueError(f"not a whole decision record: {problem}")
    return record


@functools.cache
def _schema() -> dict[str, Any]:
    return decision_schema()


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _time(record: Mapping[str, Any]) -> str:
    return str(record.get("time", ""))


def _refuses(record: Record, code: str | None, rejected: str | None) -> bool:
    return any(
        (rejected is None or (one["name"] == rejected and one.get("status") == "rejected"))
        and (code is None or any(code in (reason["code"], reason.get("axis")) for reason in one["reasons"]))
        for one in record["candidates"]
    )
