"""What a manifest may write on an axis, and what it admits: sets, ranges, multiples, levels, minima, `any`.

`Kind` turns the raw TOML value into an `Allowed`; an `Allowed` answers `admits(value)`, prints itself exactly and says
which value near a refused one it would admit. Light core: standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from attn_backends.reason import show

Admits = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Allowed:
    """A declared set of values: `text` is how a reason prints it, `nearest` maps a refused value to an admitted one."""

    admits: Admits
    text: str
    nearest: Callable[[Any], Any]
    cuts: tuple[int, ...] = ()  # lengths at which the answer may change: it is constant on [cut, next cut)
    residues: tuple[tuple[int, int], ...] = ()  # (mod, rest) on which the answer depends besides


@dataclass(frozen=True, slots=True)
class Kind:
    """How an axis is written: `parse(raw)` gives an `Allowed` or raises ValueError with what would be legal."""

    name: str
    parse: Callable[[Any], Allowed]
    legal: str  # for docs and error messages


ANY = Allowed(lambda _value: True, "any", lambda value: value)


def _listed(raw: Any) -> list[Any]:
    items = list(raw) if isinstance(raw, list | tuple) else [raw]
    if not items:
        raise ValueError("an empty set admits nothing; leave the axis out instead")
    return items


def _one_of(values: Iterable[Any], prefer: Callable[[Any], Any] | None = None) -> Allowed:
    chosen = tuple(dict.fromkeys(values))
    members = frozenset(chosen)
    text = "{" + ", ".join(show(value) for value in chosen) + "}"
    return Allowed(members.__contains__, text, prefer or (lambda _value: chosen[0]))


def names(legal: Iterable[str]) -> Kind:
    """A set of words out of a closed list, or `any`."""
    words = tuple(legal)

    def parse(raw: Any) -> Allowed:
        if raw == "any":
            return ANY
        items = _listed(raw)
        for item in items:
            if item not in words or not isinstance(item, str):
                raise ValueError(f"{item!r} is not one of {', '.join(words)}")
        return _one_of(items)

    return Kind("names", parse, " | ".join(words))


def _parse_flags(raw: Any) -> Allowed:
    if raw == "any":
        return ANY
    items = _listed(raw)
    for item in items:
        if not isinstance(item, bool):
            raise ValueError(f"{item!r} is not true or false")
    return _one_of(items)


FLAGS = Kind("flags", _parse_flags, "false | true")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _nearest_number(values: tuple[int, ...]) -> Callable[[Any], Any]:
    return lambda got: min(values, key=lambda value: (abs(value - got), -value)) if isinstance(got, int) else values[0]


def _number_set(raw: Any) -> Allowed:
    values = tuple(_whole(item) for item in _listed(raw))
    allowed = _one_of(values, _nearest_number(values))
    cuts = tuple(sorted({edge for value in values for edge in (value, value + 1)}))
    return Allowed(allowed.admits, allowed.text, allowed.nearest, cuts)


_NUMBER_KEYS = {"min", "max", "multiple_of", "mod", "rest"}


def _number_table(raw: dict[str, Any]) -> Allowed:
    unknown = set(raw) - _NUMBER_KEYS
    if unknown or not raw:
        raise ValueError(f"unknown keys {sorted(unknown)}; allowed are min, max, multiple_of, mod, rest")
    low = _whole(raw["min"]) if "min" in raw else None
    high = _whole(raw["max"]) if "max" in raw else None
    step, rest = _step(raw)
    if low is not None and high is not None and low > high:
        raise ValueError(f"min {low} is above max {high}")
    if high is not None and (low or 0) + (rest - (low or 0)) % step > high:
        raise ValueError(f"nothing from {low or 0} to {high} has rest {rest} modulo {step}")
    text = ", ".join(f"{key} {raw[key]}" for key in ("multiple_of", "mod", "rest", "min", "max") if key in raw)

    def admits(value: Any) -> bool:
        if value is None or (low is not None and value < low) or (high is not None and value > high):
            return False
        return step == 1 or value % step == rest

    least = 1 if low is None else low

    def nearest(value: Any) -> Any:
        wanted = value if isinstance(value, int) else least
        clamped = max(wanted, least) if high is None else min(max(wanted, least), high)
        up = clamped + (rest - clamped) % step
        around = [number for number in (up, up - step) if number >= least and admits(number)]
        return min(around, key=lambda number: abs(number - wanted), default=None)

    cuts = tuple(edge for edge in (low, None if high is None else high + 1) if edge is not None)
    return Allowed(admits, "{" + text + "}", nearest, cuts, ((step, rest),) if step > 1 else ())


def _step(raw: dict[str, Any]) -> tuple[int, int]:
    """(step, rest): `multiple_of = 8` is (8, 0), `mod = 128, rest = 64` is (128, 64), neither is (1, 0)."""
    if "mod" in raw or "rest" in raw:
        if "multiple_of" in raw or not {"mod", "rest"} <= set(raw):
            raise ValueError("mod and rest go together, and without multiple_of")
        step, rest = _whole(raw["mod"]), _whole(raw["rest"])
    else:
        step, rest = _whole(raw.get("multiple_of", 1)), 0
    if step < 1 or not 0 <= rest < step:
        raise ValueError(f"a step of {step} with rest {rest} admits nothing")
    return step, rest


def _parse_numbers(raw: Any) -> Allowed:
    if raw == "any":
        return ANY
    return _number_table(raw) if isinstance(raw, dict) else _number_set(raw)


NUMBERS = Kind("numbers", _parse_numbers, "a set | {min, max} | {multiple_of, max} | any")


def read_arch(raw: Any) -> tuple[int, int]:
    """`"9.0"`, `9.0`, `[9, 0]` or `"sm_90"` as (major, minor)."""
    if isinstance(raw, list | tuple) and len(raw) == 2 and all(type(part) is int for part in raw):
        return raw[0], raw[1]
    text = str(raw)
    if text.startswith("sm_") and text[3:].rstrip("af").isdigit() and len(text[3:].rstrip("af")) >= 2:
        digits = text[3:].rstrip("af")
        return int(digits[:-1]), int(digits[-1])
    major, dot, minor = text.partition(".")
    if not (dot and major.isdigit() and minor.isdigit()):
        raise ValueError(f'{raw!r} is not an architecture; write "9.0", [9, 0] or "sm_90"')
    return int(major), int(minor)


def show_arch(arch: tuple[int, int]) -> str:
    """(9, 0) as `9.0`."""
    return f"{arch[0]}.{arch[1]}"


def _parse_arch(raw: Any) -> Allowed:
    if raw == "any":
        return ANY
    if isinstance(raw, dict):
        if set(raw) != {"min", "max"}:
            raise ValueError("an architecture range has min and max; an open upper end over-claims")
        low, high = read_arch(raw["min"]), read_arch(raw["max"])
        if low > high:
            raise ValueError(f"min {show_arch(low)} is above max {show_arch(high)}")
        text = f"{{min {show_arch(low)}, max {show_arch(high)}}}"
        return Allowed(
            lambda got: got is not None and low <= got <= high,
            text,
            lambda got: low if got is None or got < low else high,
        )
    items = [raw] if isinstance(raw, list | tuple) and raw and isinstance(raw[0], int) else _listed(raw)
    arches = tuple(read_arch(item) for item in items)
    text = "{" + ", ".join(show_arch(arch) for arch in arches) + "}"
    return Allowed(frozenset(arches).__contains__, text, lambda _got: arches[-1])


ARCH = Kind("arch", _parse_arch, 'a set of "9.0" | {min, max} | any')


def levels(ordered: Iterable[str]) -> Kind:
    """Nested levels: declaring one admits it and everything before it in the order."""
    words = tuple(ordered)

    def parse(raw: Any) -> Allowed:
        if raw == "any":
            return _one_of(words)
        items = _listed(raw)
        for item in items:
            if item not in words or not isinstance(item, str):
                raise ValueError(f"{item!r} is not one of {', '.join(words)}")
        highest = max(words.index(item) for item in items)
        text = words[highest] if highest == 0 else f"at most {words[highest]}"
        return Allowed(frozenset(words[: highest + 1]).__contains__, text, lambda _got: words[highest])

    return Kind("levels", parse, " < ".join(words))


def _parse_minimum(raw: Any) -> Allowed:
    if raw == "any":
        return ANY
    least = _whole(raw)
    if least < 1 or least & (least - 1):
        raise ValueError(f"{raw!r} is not a power of two")
    return Allowed(lambda got: got >= least, f"at least {least}", lambda _got: least)


MINIMUM = Kind("minimum", _parse_minimum, "a power of two")


def _parse_nothing(raw: Any) -> Allowed:
    raise ValueError(f"{raw!r}: this axis cannot be declared")


UNDECLARABLE = Kind("undeclarable", _parse_nothing, "nothing")


def _parse_sizes(raw: Any) -> Allowed:
    if raw == "any":
        return ANY
    sizes: list[Any] = []
    for item in _listed(raw):
        if item == "none":
            sizes.append(None)
        elif isinstance(item, list | tuple) and len(item) == 2:
            sizes.append((_whole(item[0]), _whole(item[1])))
        else:
            sizes.append(_whole(item))
    return _one_of(sizes)


SIZES = Kind("sizes", _parse_sizes, 'a set of "none", 128 or [64, 128] | any')
