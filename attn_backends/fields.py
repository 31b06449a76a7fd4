"""`Field`: one plain value of a `Request`, with its default and the check that names what is allowed.

Light core: standard library only. The fields themselves stand in the one table, `attn_backends/capability.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attn_backends.errors import RequestError

MISSING: Any = type("Missing", (), {"__repr__": lambda _self: "MISSING"})()


@dataclass(frozen=True, slots=True)
class Check:
    """`legal(value)` decides, `allowed` says in words what would pass, `annotation` is the Python type for stubs."""

    legal: Callable[[Any], bool]
    allowed: str
    annotation: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Field:
    """One field of `Request`; `bucketed` fields enter the cache key as ranges, not as numbers."""

    name: str
    check: Check
    default: Any = MISSING
    bucketed: bool = False
    doc: str = ""
    keyed: bool = True  # False: enters the cache key through a derived axis only (strides)

    def verify(self, value: Any) -> None:
        """Raise RequestError with field, value and what is allowed."""
        if not self.check.legal(value):
            raise RequestError(self.name, value, self.check.allowed)


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


FLAG = Check(lambda value: isinstance(value, bool), "true or false", "bool")
SOFTCAP = Check(
    lambda value: value is None or (_is_number(value) and math.isfinite(value) and value > 0),
    "none or a finite number > 0",
    "float | None",
)
SCALE = Check(
    lambda value: value is None or (_is_number(value) and math.isfinite(value)),
    "none (1/sqrt(head_dim_qk)) or a finite number",
    "float | None",
)
PROBABILITY = Check(lambda value: _is_number(value) and 0 <= value < 1, "a number in [0, 1)", "float")
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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
