"""`manifest-1.schema.json`: a JSON Schema of `backend.toml`, for editors. It says less than the reader, never more."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from attn_backends.capability import REQUIRED, TABLE, Row
from attn_backends.cli.generators.manifest import MEANINGS
from attn_backends.registry.manifest import (
    ALGORITHMS,
    CONVERSIONS,
    MOST_START_US,
    NUMERICS,
    SHARES,
    TIERS,
    manifest_keys,
)
from attn_backends.registry.tiles import FASTEST, MOST, PACKS
from attn_backends.registry.tiles import KEYS as TILE_KEYS
from attn_backends.values import Kind

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
WHOLE: Schema = {"type": "integer"}
CALLABLE: Schema = {"type": "string", "pattern": r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"}
SHARE: Schema = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
OF_TILES: dict[str, Schema] = {
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer", "minimum": 1, "maximum": MOST},
    "number": {"type": "number", "exclusiveMinimum": 0, "maximum": FASTEST},
    "string": {"enum": list(PACKS)},
}
TILES: Schema = {
    "type": "object",
    "properties": {name: OF_TILES[kind] for name, kind in TILE_KEYS.items()},
    "additionalProperties": False,
}
ANY: Schema = {"const": "any"}
ARCH: Schema = {
    "anyOf": [
        {"type": "string", "pattern": r"^(sm_\d{2,}[af]?|\d+\.\d+)$"},
        {"type": "number"},
        {"type": "array", "items": WHOLE, "minItems": 2, "maxItems": 2},
    ]
}
NUMBER_TABLE: Schema = {
    "type": "object",
    "properties": dict.fromkeys(("min", "max", "multiple_of", "mod", "rest"), WHOLE),
    "additionalProperties": False,
    "minProperties": 1,
}

KEYS: dict[str, Schema] = {
    "schema": {"const": 1},
    "name": {"type": "string", "pattern": "^[a-z][a-z0-9_-]*$"},
    "version": TEXT,
    "api": TEXT,
    "priority": WHOLE,
    "tier": {"enum": list(TIERS)},
    "numerics": {"enum": list(NUMERICS)},
    "requires": {"type": "array", "items": TEXT},
    "converts": {"type": "array", "items": {"enum": list(CONVERSIONS)}},
    "efficiency": {"type": "object", "properties": dict.fromkeys(SHARES, SHARE), "additionalProperties": False},
    "start_us": {"type": "number", "minimum": 0, "maximum": MOST_START_US},
    "algorithm": {"enum": list(ALGORITHMS)},
    "tiles": {"type": "array", "items": TILES},
    **dict.fromkeys(("kernel", "check", "plan", "backward", "workspace"), CALLABLE),
}  # fmt: skip
REQUIRED_KEYS = ("schema", "name", "version", "api", "kernel", "capability")


def render() -> str:
    """The schema as text."""
    return json.dumps(manifest_schema(), indent=2) + "\n"


def manifest_schema() -> Schema:
    """JSON Schema 2020-12 of a manifest."""
    box = {
        "type": "object",
        "properties": {name: schema for row in TABLE for name, schema in _axis(row).items()},
        "required": [row.axis for row in TABLE if _must_be_declared(row)],
        "additionalProperties": False,
    }
    keys = {**KEYS, "capability": {"type": "array", "items": box, "minItems": 1}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "attn-backends manifest, schema 1",
        "description": "What an attention backend is, what it needs, and what it can do.",
        "type": "object",
        "properties": {name: {"description": MEANINGS[name], **keys[name]} for name in manifest_keys()},
        "required": list(REQUIRED_KEYS),
        "additionalProperties": False,
    }


def _must_be_declared(row: Row) -> bool:
    """Axes that every call has a value on, and that have no parts to be declared apart."""
    applies_always = row.axis not in ("arch", "causal_alignment")
    return row.neutral is REQUIRED and row.undeclared is None and not row.parts and applies_always


def _axis(row: Row) -> dict[str, Schema]:
    """The axis and its parts."""
    write = _KINDS.get(row.kind.name)
    if write is None:
        return {}
    value = write(row.kind)
    parts = {part: {"description": f"{row.doc}: {part} alone", **value} for part in row.parts}
    if row.parts:
        apart = {
            "type": "object",
            "properties": dict.fromkeys(row.parts, value),
            "additionalProperties": False,
            "minProperties": 1,
        }
        return {row.axis: {"description": row.doc, "anyOf": [value, apart]}, **parts}  # fmt: skip
    return {row.axis: {"description": row.doc, **value}}


def _set_of(one: Schema, *others: Schema) -> Schema:
    return {"anyOf": [ANY, one, {"type": "array", "items": one, "minItems": 1}, *others]}


def _words(kind: Kind) -> Schema:
    return _set_of({"enum": kind.legal.split(" < " if kind.name == "levels" else " | ")})


def _sizes(_kind: Kind) -> Schema:
    pair = {"type": "array", "items": WHOLE, "minItems": 2, "maxItems": 2}
    return _set_of({"anyOf": [{"const": "none"}, {"type": "integer", "minimum": 1}, pair]})


def _arch(_kind: Kind) -> Schema:
    span = {
        "type": "object",
        "properties": {"min": ARCH, "max": ARCH},
        "required": ["min", "max"],
        "additionalProperties": False,
    }
    return _set_of(ARCH, span)


# A kind that is not here is left out of the schema, and its axes are then unknown to editors: a test watches over it.
_KINDS: dict[str, Callable[[Kind], Schema]] = {
    "names": _words,
    "levels": _words,
    "flags": lambda _kind: _set_of({"type": "boolean"}),
    "numbers": lambda _kind: _set_of(WHOLE, NUMBER_TABLE),
    "arch": _arch,
    "minimum": lambda _kind: {"anyOf": [ANY, {"type": "integer", "minimum": 1}]},
    "sizes": _sizes,
}
