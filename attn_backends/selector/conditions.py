"""`Conditions`: a partial box, for policy rules, scopes and quarantine. What it does not name, it does not restrict.

Beside the axes it may name sizes (`batch`, `seq_q`, `seq_k`, `total_q`, `total_k`, `num_q_heads`, `num_kv_heads`,
`num_pages`) as sets, ranges, multiples or `{ mod = 128, rest = 64 }`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attn_backends.box import nearest_names, wanted
from attn_backends.capability import FITS_ANY, TABLE, Row
from attn_backends.reason import frozen, plain
from attn_backends.values import NUMBERS, Allowed

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.request import Request

SIZES = ("batch", "seq_q", "seq_k", "total_q", "total_k", "num_q_heads", "num_kv_heads", "num_pages")
_OF_THE_BATCH = ("batch", "total_q", "total_k", "num_pages")
_PARTS = {part: (row, position) for row in TABLE for position, part in enumerate(row.parts)}
_ROWS = {row.axis: row for row in TABLE}
Test = tuple[str, Row | None, int | None, Allowed]  # (name, row or None for a size, part or None for all, allowed)


@dataclass(frozen=True, slots=True, eq=False)
class Conditions:
    """Parsed conditions; equal if written equally."""

    raw: tuple[tuple[str, Any], ...]
    tests: tuple[Test, ...] = field(repr=False)

    def hold(self, request: Request, device: Device) -> bool:
        """Whether every named axis and size of the request lies in its set."""
        for test in self.tests:  # noqa: SIM110  # every selection asks every quarantine entry, and a loop is quicker
            if not _holds(test, request, device):
                return False
        return True

    @property
    def of_the_batch(self) -> bool:
        """Whether they hang on how many sequences are asked for together."""
        return any(name in _OF_THE_BATCH for name, *_ in self.tests)

    def lengths(self) -> list[tuple[str, Allowed]]:
        """(size, allowed) for every size that is named; the cache key must not straddle their limits."""
        named = [(name, allowed) for name, row, _, allowed in self.tests if row is None]
        for name, row, part, allowed in self.tests:
            if row is not None and row.axis == "seq_len":
                named += [(size, allowed) for size in (row.parts if part is None else (name,))]
        return named

    def describe(self) -> str:
        """`phase {decode}, arch {9.0}`."""
        return ", ".join(f"{name} {wanted(row or TABLE[0], allowed)}" for name, row, _, allowed in self.tests)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Conditions) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as they were written, and parsed again."""
        return _again, (self.to_json(),)

    def to_json(self) -> dict[str, Any]:
        """The conditions as they were written."""
        return {name: _thawed(value) for name, value in self.raw}


def parse_conditions(raw: Mapping[str, Any], fail: Callable[[str], Exception]) -> Conditions:
    """Read conditions; `fail(text)` makes the exception for an illegal one."""
    if not isinstance(raw, Mapping):
        raise fail(f"{raw!r}: conditions are a table such as {{ phase = ['decode'] }}")
    tests = tuple(_parse(name, value, fail) for name, value in raw.items())
    return Conditions(tuple(sorted((name, _hashable(value)) for name, value in raw.items())), tests)


def _again(raw: dict[str, Any]) -> Conditions:
    return parse_conditions(raw, ValueError)


def _parse(name: str, value: Any, fail: Callable[[str], Exception]) -> Test:
    try:
        if name in SIZES:
            return name, None, None, NUMBERS.parse(value)
        if name in _PARTS:
            row, part = _PARTS[name]
            return name, row, part, row.kind.parse(value)
        if name in _ROWS:
            return name, _ROWS[name], None, _ROWS[name].kind.parse(value)
    except ValueError as error:
        raise fail(f"{name}: {error}") from None
    raise fail(f"{name}: unknown axis; {nearest_names(name, [*SIZES, *_PARTS, *_ROWS])}")


def _holds(test: Test, request: Request, device: Device) -> bool:
    name, row, part, allowed = test
    if row is None:
        return allowed.admits(getattr(request, name))
    value = row.read(request, device)
    if value is FITS_ANY:
        return False
    if not row.parts:
        return allowed.admits(value)
    return allowed.admits(value[part]) if part is not None else all(allowed.admits(one) for one in value)


def _hashable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ("table", *sorted((key, _hashable(item)) for key, item in value.items()))
    return frozen(plain(value))


def _thawed(value: Any) -> Any:
    if isinstance(value, tuple) and value and value[0] == "table":
        return {key: _thawed(item) for key, item in value[1:]}
    return plain(value)


ANYWHERE = parse_conditions({}, ValueError)  # they hold for every request
