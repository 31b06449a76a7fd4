"""`Field`: one plain value of a `Request`, with its default and the check that names what is allowed.

Light core: standard library only. The fields themselves stand in the one table, `attn_backends/capability.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attn_backends.errors import RequestError


class Sentinel:
    """A value that is only itself, also behind `pickle` and `copy`: the global `name` of its module."""

    def __init__(self, module: str, name: str) -> None:
        self.__module__ = module
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def __reduce__(self) -> str:
        return self._name


MISSING: Any = Sentinel(__name__, "MISSING")


@dataclass(frozen=True, slots=True)
class Check:
    """`legal(value)` decides, `allowed` says in words what would pass, `annotation` is the Python type for stubs.

    `one_form` makes equal values the same value (30 and 30.0, 0.0 and -0.0), so that they print and digest alike.
    """

    legal: Callable[[Any], bool]
    allowed: str
    annotation: str
    choices: tuple[str, ...] = ()
    one_form: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True, slots=True)
class Field:
    """One field of `Request`; `bucketed` fields enter the cache key as ranges, not as numbers."""

    name: str
    check: Check
    default: Any = MISSING
    bucketed: bool = False
    doc: str = ""
    keyed: bool = True  # False: enters the cache key through a derived axis only (strides)

    def verify(self, value: Any) -> Any:
        """The value in its one form. Raises RequestError with field, value and what is allowed."""
        if not self.check.legal(value):
            raise RequestError(self.name, value, self.check.allowed)
        return self.check.one_form(value)


def _is_int(value: Any) -> bool:
    return type(value) is int


def whole(least: int) -> Check:
    """An int that is at least `least` (a bool is no int here)."""
    return Check(lambda value: type(value) is int and value >= least, f"a whole number >= {least}", "int")


def optional_whole(least: int) -> Check:
    """None, or an int that is at least `least`."""
    legal = whole(least).legal
    return Check(lambda value: value is None or legal(value), f"none or a whole number >= {least}", "int | None")


def word(*choices: str) -> Check:
    """One of a closed list of words."""
    members = frozenset(choices)
    return Check(
        lambda value: isinstance(value, str) and value in members, "one of " + ", ".join(choices), "str", choices
    )


def optional_word(*choices: str) -> Check:
    """None, or one of a closed list of words."""
    members = frozenset(choices)
    return Check(
        lambda value: value is None or (isinstance(value, str) and value in members),
        "none or one of " + ", ".join(choices),
        "str | None",
        choices,
    )


def _as_float(value: Any) -> float | None:
    return None if value is None else float(value) + 0.0  # -0.0 + 0.0 is 0.0


FLAG = Check(lambda value: isinstance(value, bool), "true or false", "bool")
SOFTCAP = Check(
    lambda value: value is None or (_is_finite(value) and value > 0),
    "none or a finite number > 0",
    "float | None",
    one_form=_as_float,
)
SCALE = Check(
    lambda value: value is None or _is_finite(value),
    "none (1/sqrt(head_dim_qk)) or a finite number",
    "float | None",
    one_form=_as_float,
)
PROBABILITY = Check(
    lambda value: _is_finite(value) and 0 <= value < 1, "a number in [0, 1)", "float", one_form=_as_float
)
ALIGNMENT = Check(
    lambda value: type(value) is int and value > 0 and value & (value - 1) == 0, "a power of two, in bytes", "int"
)
BLOCK_SIZE = Check(
    lambda value: (
        value is None
        or (_is_int(value) and value >= 1)
        or (isinstance(value, tuple) and len(value) == 2 and all(_is_int(n) and n >= 1 for n in value))
    ),
    "none, a block size, or a pair (query block, key block)",
    "int | tuple[int, int] | None",
)
STRIDES = Check(
    lambda value: (
        value is None
        or (isinstance(value, tuple) and len(value) in (3, 4) and all(_is_int(n) and n >= 0 for n in value))
    ),
    "none (contiguous) or element strides (batch, seq, heads, head_dim); without batch for packed tensors",
    "tuple[int, ...] | None",
)
UNKNOWN = Check(
    lambda value: isinstance(value, tuple) and all(isinstance(name, str) for name in value),
    "names of request fields that this version does not know",
    "tuple[str, ...]",
)


def _is_finite(value: Any) -> bool:
    """Whether it is a number that a float can hold."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond all floats
        return False
