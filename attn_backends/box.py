"""`Box`: one `[[capability]]` entry, parsed against the table; and matching: which axes a request misses.

A request fits a backend if it fits one whole box. Light core: standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from attn_backends.capability import FITS_ANY, REQUIRED, TABLE, Row
from attn_backends.reason import Reason, show
from attn_backends.values import Allowed

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.request import Request

Table = Sequence[Row]
Values = tuple[Any, ...]  # a request's value on every row of the table
Miss = tuple[int, int]  # (row, part)


def axis_values(request: Request, device: Device, table: Table = TABLE) -> Values:
    """Read every axis once, for matching against many boxes."""
    fields, derived, in_order = _readers.get(id(table)) or _compile(table)
    values: Values = in_order((*fields(request), *[read(request, device) for read in derived]))
    return values


_readers: dict[int, Any] = {}  # by identity of a table: (getter of plain rows' fields, readers of the others, order)


def _compile(table: Table) -> Any:
    plain = [(index, row.plain) for index, row in enumerate(table) if row.plain is not None]
    derived = [(index, row.read) for index, row in enumerate(table) if row.plain is None]
    places = [index for index, _ in (*plain, *derived)]
    compiled = (
        attrgetter(*(name for _, name in plain)),
        [read for _, read in derived],
        itemgetter(*map(places.index, range(len(table)))),
    )
    _readers[id(table)] = compiled
    _kept_alive.append(table)
    return compiled


_kept_alive: list[Table] = []  # so that an identity is never reused


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """A set of allowed values per axis; `entries[row]` has one `Allowed` per part, or None where undeclared."""

    source: str
    raw: dict[str, Any]
    entries: tuple[tuple[Allowed | None, ...], ...]

    def admits(self, row: Row, index: int, part: int, value: Any) -> bool:
        """Whether this box takes a value on one axis (one part of it): closed world, neutral values aside."""
        if value is FITS_ANY:
            return True
        allowed = self.entries[index][part]
        if allowed is None or row.parts:
            if row.neutral is not REQUIRED and value == row.neutral:
                return True
            return allowed is not None and allowed.admits(value)
        return allowed.admits(value)

    def reason(self, values: Values, miss: Miss, table: Table = TABLE) -> Reason:
        """The record of one miss: what was asked, what is declared, where."""
        index, part = miss
        row, allowed = table[index], self.entries[index][part]
        value = values[index]
        got, name = (value[part], row.parts[part]) if row.parts else (value, row.axis)
        want = wanted(row, allowed)
        shown = show_axis(row, got)
        prefix = row.axis if name == row.axis else f"{row.axis}: {name}"
        return Reason(row.axis, row.axis, got, want, f"{prefix}: got {shown}, want {want}", self.source, row.hint)

    def nearest(self, values: Values, miss: Miss, table: Table = TABLE) -> Any:
        """The admitted value nearest to the refused one, or the neutral one where nothing is declared."""
        index, part = miss
        row, allowed = table[index], self.entries[index][part]
        if allowed is not None:
            value = values[index]
            return allowed.nearest(value[part] if row.parts else value)
        return None if row.neutral is REQUIRED else row.neutral


def wanted(row: Row, allowed: Allowed | None) -> str:
    """The declared set exactly as a reason prints it."""
    if allowed is not None:
        return allowed.text
    if row.neutral is REQUIRED:
        return "nothing (not declared)"
    return f"{show(row.neutral)} (not declared)"


def show_axis(row: Row, value: Any) -> str:
    """A value as manifests write it; architectures as `9.0`."""
    if row.axis == "arch" and isinstance(value, tuple):
        return f"{value[0]}.{value[1]}"
    return show(value)


def parse_box(raw: dict[str, Any], source: str, fail: Callable[[str, str], Exception], table: Table = TABLE) -> Box:
    """Read one `[[capability]]`; `fail(axis, why)` makes the exception for an illegal entry."""
    known = {name for row in table for name in (row.axis, *row.parts)}
    for name in raw:
        if name not in known:
            raise fail(name, f"unknown axis; {nearest_names(name, known)}")
    return Box(source, raw, tuple(_parse_row(row, raw, fail) for row in table))


def _parse_row(row: Row, raw: dict[str, Any], fail: Callable[[str, str], Exception]) -> tuple[Allowed | None, ...]:
    whole = raw.get(row.axis, row.undeclared)
    if not row.parts:
        return (None if whole is None else _parse(row, row.axis, whole, fail),)
    apart = {name: raw[name] for name in row.parts if name in raw}
    if isinstance(whole, dict) and whole and set(whole) <= set(row.parts):
        apart, whole = {**whole, **apart}, None
    shared = None if whole is None else _parse(row, row.axis, whole, fail)
    return tuple(_parse(row, name, apart[name], fail) if name in apart else shared for name in row.parts)


def _parse(row: Row, name: str, raw: Any, fail: Callable[[str, str], Exception]) -> Allowed:
    try:
        return row.kind.parse(raw)
    except ValueError as error:
        raise fail(name, f"{error}; legal: {row.kind.legal}") from None


def nearest_names(name: object, known: Iterable[str]) -> str:
    """`did you mean a, b?` for a mistyped word, or the whole list if nothing is near."""
    options = sorted(known)
    return near_names(name, options) or f"known: {', '.join(options)}"


def near_names(name: object, known: Iterable[str]) -> str | None:
    """`did you mean a, b?`, or None if nothing is near."""
    import difflib

    close = difflib.get_close_matches(str(name), sorted(known), n=3, cutoff=0.5)
    return f"did you mean {', '.join(close)}?" if close else None
