"""`misfit`: whether a value has the types and keys that a JSON Schema asks for, and where it does not.

Enough for a reader to work on what it read without a further look: types, required keys, items. It lets pass what a
newer version may add: further keys, further words of an enum. Real validation is `schema.validate`. Standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


def misfit(value: Any, schema: Mapping[str, Any], where: str = "") -> str | None:
    """The first place that does not fit, as `candidates[2].rank: expected integer or null, got string`; None if all does."""
    kinds = _kinds(schema)
    if kinds and not any(_is(value, kind) for kind in kinds):
        return f"{where or 'record'}: expected {' or '.join(kinds)}, got {_kind_of(value)}"
    if isinstance(value, dict):
        return _misfit_of_object(value, schema, where)
    if isinstance(value, list) and "items" in schema:
        return _first(misfit(item, schema["items"], f"{where}[{index}]") for index, item in enumerate(value))
    return None


def _misfit_of_object(value: dict[str, Any], schema: Mapping[str, Any], where: str) -> str | None:
    prefix = f"{where}." if where else ""
    for name in schema.get("required", ()):
        if name not in value:
            return f"{prefix}{name}: missing"
    known = schema.get("properties", {})
    return _first(misfit(value[name], known[name], prefix + name) for name in known if name in value)


def _first(found: Any) -> str | None:
    return next((text for text in found if text is not None), None)


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    """The types that a schema admits; those of its words where it lists words; none for anything."""
    if "enum" in schema or "const" in schema:
        return list(dict.fromkeys(_kind_of(word) for word in schema.get("enum", [schema.get("const")])))
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and not (isinstance(value, bool) and kind in ("integer", "number"))


def _kind_of(value: Any) -> str:
    return next((kind for kind in _TYPES if _is(value, kind)), type(value).__name__)
