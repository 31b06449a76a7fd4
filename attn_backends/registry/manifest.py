"""`Manifest`: one backend as data, read from `backend.toml` or a dict; every mistake names file, entry and line.

Imports the light core and `packaging`; no backend code.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from attn_backends.box import Box, nearest_names, parse_box
from attn_backends.capability import TABLE, Row
from attn_backends.errors import ManifestError
from attn_backends.registry.requires import Requires, read_requires
from attn_backends.registry.tiles import Tiles, read_tiles

TIERS = ("standard", "reference")
NUMERICS = ("exact", "quantized", "approximate")
ALGORITHMS = ("tiled", "materialising")
SHARES = ("matrix", "exp", "memory", "backward", "quantized")  # of a device's peaks, under `efficiency`
MOST_START_US = 1000
CONVERSIONS = (
    "make_contiguous", "repeat_kv", "pad_head_dim", "flip_alignment", "expand_mask", "dequantize_kv", "gather_pages",
    "sanitize_kv",
)  # fmt: skip
ORIGINS = ("builtin", "third_party", "in_process")
NAME = re.compile(r"[a-z][a-z0-9_-]*")
_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Manifest:
    """What a backend declares of itself. `label` is how reasons name its file; `boxes` are its capability boxes."""

    name: str
    version: str
    api: SpecifierSet
    priority: int
    tier: str
    numerics: str
    requires: tuple[Requires, ...]
    callables: dict[str, str]  # kernel, check, plan, backward, workspace -> "module:name"
    converts: tuple[str, ...]
    efficiency: dict[str, float]
    start_us: float = 0.0  # that a call takes before its first tile and after its last, for the cost model
    algorithm: str = "tiled"
    tiles: tuple[Tiles, ...] = ()  # for the cost model
    boxes: tuple[Box, ...]
    origin: str
    label: str
    raw: dict[str, Any]
    folder: Path | None = None  # where the manifest lies; never printed
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)  # given in-process, instead of names
    digest: str = ""

    def offers(self, role: str) -> bool:
        """Whether the manifest names a callable for this role (kernel, check, plan, backward, workspace)."""
        return role in self.callables or role in self.functions


@dataclass(frozen=True, slots=True)
class _Key:
    read: Callable[[Any], Any]
    legal: str
    default: Any = None
    required: bool = False


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not a text")
    return value


def _name(value: Any) -> str:
    if not NAME.fullmatch(_text(value)):
        raise ValueError(f"{value!r} is not a backend name")
    return str(value)


def _version(value: Any) -> str:
    try:
        return str(Version(_text(value)))
    except InvalidVersion as error:
        raise ValueError(str(error)) from None


def _specifier(value: Any) -> SpecifierSet:
    try:
        return SpecifierSet(_text(value))
    except InvalidSpecifier as error:
        raise ValueError(str(error)) from None


def _requirement(value: Any) -> Requires:
    return read_requires(_text(value))


def _callable(value: Any) -> str:
    if not _CALLABLE.fullmatch(_text(value)):
        raise ValueError(f"{value!r} is not module:callable")
    return str(value)


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _word(*legal: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in legal:
            raise ValueError(f"{value!r} is not one of {', '.join(legal)}")
        return str(value)

    return read


def _list_of(read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def read_all(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{value!r} is not a list")
        return tuple(read(item) for item in value)

    return read_all


def _fractions(value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not a table")
    for key, fraction in value.items():
        if key not in SHARES or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
            raise ValueError(f"{key} = {fraction!r} is not one of {', '.join(SHARES)} in (0, 1]")
    return {key: float(fraction) for key, fraction in value.items()}


def _microseconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= MOST_START_US:
        raise ValueError(f"{value!r} is no number of microseconds from 0 to {MOST_START_US}")
    return float(value)


_ROLES = ("kernel", "check", "plan", "backward", "workspace")
_KEYS: dict[str, _Key] = {
    "schema": _Key(_integer, "1", 1, required=True),
    "name": _Key(_name, "[a-z][a-z0-9_-]*", required=True),
    "version": _Key(_version, "a PEP 440 version", "0", required=True),
    "api": _Key(_specifier, 'a specifier such as ">=1.0,<2"', ">=1.0,<2", required=True),
    "priority": _Key(_integer, "a whole number; larger is preferred", 0),
    "tier": _Key(_word(*TIERS), " | ".join(TIERS), "standard"),
    "numerics": _Key(_word(*NUMERICS), " | ".join(NUMERICS), "exact"),
    "requires": _Key(_list_of(_requirement), 'a list such as ["torch>=2.6"]', ()),
    "converts": _Key(_list_of(_word(*CONVERSIONS)), "a list out of " + ", ".join(CONVERSIONS), ()),
    "efficiency": _Key(_fractions, "{ matrix = 0.7, memory = 0.85 }", {}),
    "start_us": _Key(_microseconds, f"microseconds, 0 to {MOST_START_US}", 0.0),
    "algorithm": _Key(_word(*ALGORITHMS), " | ".join(ALGORITHMS), "tiled"),
    "tiles": _Key(_list_of(read_tiles), "a list such as [{ head_dim = 64, rows = 192, keys = 128 }]", ()),
    **{role: _Key(_callable, "module:callable") for role in _ROLES},
}


def manifest_keys() -> dict[str, str]:
    """Every top-level key of a manifest and what is legal there, for the docs and the JSON Schema."""
    return {**{name: key.legal for name, key in _KEYS.items()}, "capability": "one [[capability]] table per box"}


def read_manifest(
    raw: dict[str, Any],
    *,
    label: str,
    origin: str,
    text: str = "",
    folder: Path | None = None,
    functions: dict[str, Callable[..., Any]] | None = None,
    table: tuple[Row, ...] = TABLE,
) -> Manifest:
    """Check a manifest dict whole. Raises ManifestError with file, entry, line (found in `text`) and what is legal."""
    fail = _failures(label, text)
    for key in raw:
        if key != "capability" and key not in _KEYS:
            raise fail("", key, f"unknown key; {nearest_names(key, [*_KEYS, 'capability'])}")
    values = {key: _read_key(key, spec, raw, origin, functions or {}, fail) for key, spec in _KEYS.items()}
    if values["schema"] != 1:
        raise fail("", "schema", f"{values['schema']} is not a manifest schema this version reads; legal: 1")
    entries = raw.get("capability", [])
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise fail("", "capability", "a manifest has at least one [[capability]] box")
    boxes = tuple(_read_box(index, entry, label, fail, table) for index, entry in enumerate(entries, 1))
    return Manifest(
        name=values["name"], version=values["version"], api=values["api"], priority=values["priority"],
        tier=values["tier"], numerics=values["numerics"], requires=values["requires"], converts=values["converts"],
        efficiency=values["efficiency"], start_us=values["start_us"], algorithm=values["algorithm"],
        tiles=values["tiles"],
        callables={role: values[role] for role in _ROLES if values[role]},
        boxes=boxes, origin=origin, label=label, raw=raw, folder=folder, functions=dict(functions or {}),
        digest=hashlib.sha256(json.dumps(raw, sort_keys=True, default=str).encode()).hexdigest()[:16],
    )  # fmt: skip


Fail = Callable[[str, str, str], ManifestError]  # (entry, key, why)


def _read_key(
    name: str, key: _Key, raw: dict[str, Any], origin: str, functions: dict[str, Callable[..., Any]], fail: Fail
) -> Any:
    if name not in raw:
        optional = not key.required or (origin == "in_process" and name != "name")
        if name == "kernel" and name not in functions:
            optional = False
        if not optional:
            raise fail("", name, f"missing; legal: {key.legal}")
        return key.default if key.default is None else key.read(key.default)
    try:
        return key.read(raw[name])
    except ValueError as error:
        raise fail("", name, f"{error}; legal: {key.legal}") from None


def _read_box(index: int, entry: dict[str, Any], label: str, fail: Fail, table: tuple[Row, ...]) -> Box:
    where = f"[[capability]] {index}"
    return parse_box(entry, f"{label} {where}", lambda axis, why: fail(where, axis, why), table)


def _failures(label: str, text: str) -> Fail:
    def fail(entry: str, key: str, why: str) -> ManifestError:
        line = _line_of(text, entry, key)
        where = f"{label}:{line}" if line else label
        return ManifestError(" ".join(part for part in (where, entry, f"{key}:", why) if part))

    return fail


def _line_of(text: str, entry: str, key: str) -> int | None:
    """Line of `key` (in the box that `entry` names), found by scanning the text again."""
    box = int(entry.rsplit(" ", 1)[1]) if entry else 0
    seen, opened = 0, None
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*\[\[\s*capability\s*\]\]", line):
            seen += 1
            opened = number if seen == box else opened
        if seen == box and re.match(rf'\s*"?{re.escape(key)}"?\s*[=.]', line):
            return number
    return opened


def read_manifest_file(path: Path, *, label: str, origin: str, table: tuple[Row, ...] = TABLE) -> Manifest:
    """Read a `backend.toml`. Raises ManifestError for a missing file, bad TOML (with line) or a bad entry."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ManifestError(f"{label}: cannot be read: {why}") from None
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{label}: not TOML: {error}") from None
    return read_manifest(raw, label=label, origin=origin, text=text, folder=path.parent, table=table)
