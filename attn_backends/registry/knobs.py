"""Environment variables `ATTN_BACKENDS_*`: read in one place, unknown names warned about once with the nearest match."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attn_backends.box import nearest_names
from attn_backends.errors import PolicyError

PREFIX = "ATTN_BACKENDS_"
KNOBS = {
    "BLOCK": "backends never to use, comma separated",
    "ONLY": "the only backends to use, comma separated",
    "PIN": "the one backend to use for every call; a call it cannot serve raises",
    "AUTOLOAD": "0 = ignore the backends of other installed distributions",
    "STRICT": "1 = falling to the reference is an error, and so is a misspelt knob",
    "LOG": "folder for the decision log (JSON lines); 1 = the user's log folder",
    "LOG_BYTES": "size in bytes at which a log file is rotated",
    "LOG_FILES": "rotated log files kept per process",
    "MEASUREMENTS": "file of measured times, read once per process; 0 = use none",
}
_NAMES = tuple(PREFIX + name for name in KNOBS)
# os.environ decodes at every read, 0.8 us each; its own dict underneath, where there is one, costs 0.04
_raw_environment: Any = getattr(os.environ, "_data", None)
_read, _KEYS = (
    (_raw_environment.get, tuple(os.environ.encodekey(name) for name in _NAMES))
    if isinstance(_raw_environment, dict)
    else (os.environ.get, _NAMES)
)
_DECIDING = ("BLOCK", "ONLY", "PIN", "STRICT")
_DECIDING_KEYS = tuple(key for name, key in zip(KNOBS, _KEYS, strict=True) if name in _DECIDING)
NO_KNOBS: tuple[bytes | str | None, ...] = (None,) * len(KNOBS)
_ON = {"1", "true", "yes", "on"}
_OFF = {"", "0", "false", "no", "off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """The knobs, parsed."""

    block: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    pin: str | None = None
    autoload: bool = True
    strict: bool = False
    log: str | None = None
    log_bytes: int | None = None
    log_files: int | None = None
    measurements: str | None = None


def raw_knobs() -> tuple[bytes | str | None, ...]:
    """The variables as they stand now; cheap enough for every call, so that a change is seen at once."""
    return tuple(map(_read, _KEYS))


def deciding_knobs() -> tuple[bytes | str | None, ...]:
    """Those of the variables that a decision depends on, as they stand now; for cache keys."""
    return tuple(map(_read, _DECIDING_KEYS))


@functools.lru_cache(maxsize=64)
def parse_knobs(raw: tuple[bytes | str | None, ...]) -> Knobs:
    """Read what `raw_knobs` returned. Raises PolicyError for a value that means nothing."""
    texts = [os.fsdecode(value) if value is not None else None for value in raw]
    values = dict(zip(KNOBS, texts, strict=True))
    return Knobs(
        block=_names(values["BLOCK"]) or frozenset(),
        only=_names(values["ONLY"]),
        pin=values["PIN"] or None,
        autoload=_switch("AUTOLOAD", values["AUTOLOAD"], True),
        strict=_switch("STRICT", values["STRICT"], False),
        log=values["LOG"] or None,
        log_bytes=_count("LOG_BYTES", values["LOG_BYTES"]),
        log_files=_count("LOG_FILES", values["LOG_FILES"]),
        measurements=values["MEASUREMENTS"] or None,
    )


def current_knobs() -> Knobs:
    """The knobs as they stand now."""
    return parse_knobs(raw_knobs())


@functools.lru_cache(maxsize=1)
def warn_of_unknown_knobs() -> None:
    """Warn once per process of variables that look like knobs and are none."""
    for problem in unknown_knobs(os.environ):
        if current_knobs().strict:
            raise PolicyError(problem)
        warnings.warn(problem, stacklevel=3)


def unknown_knobs(environment: Mapping[str, str]) -> list[str]:
    """One sentence per variable that starts like a knob and is none."""
    strange = sorted(name for name in environment if name.startswith(PREFIX) and name not in _NAMES)
    return [f"environment variable {name} is not a knob; {nearest_names(name, _NAMES)}" for name in strange]


def _names(text: str | None) -> frozenset[str] | None:
    names = frozenset(part.strip() for part in (text or "").split(",") if part.strip())
    return names or None


def _switch(name: str, text: str | None, default: bool) -> bool:
    if text is None:
        return default
    word = text.strip().lower()
    if word not in _ON | _OFF:
        raise PolicyError(f"{PREFIX}{name}: got {text!r}; allowed: 0 or 1")
    return word in _ON


def _count(name: str, text: str | None) -> int | None:
    if text is None or not text.strip():
        return None
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise PolicyError(f"{PREFIX}{name}: got {text!r}; allowed: a whole number >= 1")
    return number
