"""The JSON Schema of a record, `attn.decision/1`, derived from the one table; the shipped copy stands in `schema/`.

`make generate` rewrites the copy after a change of the table. Not needed to write or read a log: `validate` is for tests
and asks for the package `jsonschema`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attn_backends.capability import DEVICE_KINDS, TABLE
from attn_backends.fields import MISSING, Field
from attn_backends.request_fields import FIELDS

SCHEMA = "attn.decision/1"
SHIPPED = Path(__file__).with_name("schema") / "decision-1.schema.json"

SELECTOR_CODES = ("blocked", "not_in_only", "api_version", "requirement", "load_error", "not_certified", "numerics",
                  "quarantine", "gap", "smem", "check", "unknown_feature", "outranked")  # fmt: skip
REASON_CODES = tuple(dict.fromkeys((*(row.axis for row in TABLE), *SELECTOR_CODES)))
SOURCES = ("explicit", "scope", "prefer", "rank_hook", "measured", "cost_model", "priority")
STATUSES = ("selected", "outranked", "rejected")
STAGES = ("policy", "version", "load", "certificate", "numerics", "quarantine", "capability", "check", "rank")
TIERS = ("standard", "reference")
NUMERICS = ("exact", "quantized", "approximate")
MEASURED_BY = ("bucket", "neighbours")
LATER = ("measured_at", "measured_by")  # of a candidate; records of earlier versions lack them

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
MILLISECONDS: Schema = {"type": ["number", "null"], "minimum": 0}
PLAIN: Schema = {"description": "any plain value", "type": ["null", "boolean", "number", "string", "array"]}
_TYPES: dict[str, Schema] = {
    "int": {"type": "integer"},
    "int | None": {"type": ["integer", "null"]},
    "float": {"type": "number"},
    "float | None": {"type": ["number", "null"]},
    "bool": {"type": "boolean"},
    "str": TEXT,
    "str | None": {"type": ["string", "null"]},
    "int | tuple[int, int] | None": {"type": ["integer", "array", "null"], "items": {"type": "integer"}},
    "tuple[int, ...] | None": {"type": ["array", "null"], "items": {"type": "integer"}},
    "tuple[str, ...]": {"type": "array", "items": TEXT},
}


def decision_schema() -> Schema:
    """JSON Schema 2020-12 of one record, with or without the sink's envelope."""
    fields = _record_fields()
    envelope = _envelope_fields()
    names = list(envelope)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SCHEMA,
        "description": "One decision of the selector: what was asked, what was chosen, why not the others.",
        **_closed({**fields, **envelope}, required=list(fields)),
        "dependentRequired": {name: [other for other in names if other != name] for name in names},
    }


def render_schema() -> str:
    """The text of the shipped file."""
    return json.dumps(decision_schema(), indent=2) + "\n"


def validate(record: Mapping[str, Any]) -> None:
    """Raise `jsonschema.ValidationError` unless the record is a legal one. Needs the package jsonschema."""
    jsonschema = importlib.import_module("jsonschema")
    jsonschema.Draft202012Validator(decision_schema()).validate(dict(record))


def _closed(properties: Schema, required: list[str] | None = None) -> Schema:
    needed = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _enum(values: tuple[str, ...], *, optional: bool = False) -> Schema:
    return {"enum": [*values, None] if optional else list(values)}


def _record_fields() -> Schema:
    return {
        "schema": {"const": SCHEMA},
        "id": {"type": "string", "pattern": "^[0-9a-f]{16,}$"},
        "backend": {"type": ["string", "null"], "minLength": 1},
        "source": _enum(SOURCES, optional=True),
        "request": _closed({field.name: _field(field) for field in FIELDS}, _required_fields()),
        "device": _device(),
        "policy": {"type": "object", "description": "fields that are not at their default"},
        "forced": _forced(),
        "registry": {"type": "string", "description": "digest of the registry snapshot"},
        "environment": _environment(),
        "downcast": {"type": ["string", "null"], "description": "dtype the backend runs in, if not the request's"},
        "candidates": _list(_candidate()),
        "nearest": _list(_closed({"backend": TEXT, "changes": _list(_change())})),
    }


def _envelope_fields() -> Schema:
    return {
        "time": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|\+00:00)$"},
        "pid": COUNT,
        "rank": COUNT,
        "seq": {**COUNT, "description": "counts the lines of one process"},
    }


def _field(field: Field) -> Schema:
    base = _TYPES[field.check.annotation]
    if field.check.choices:
        base = _enum(field.check.choices, optional="None" in field.check.annotation)
    return {**base, "description": field.doc} if field.doc else base


def _required_fields() -> list[str]:
    return [field.name for field in FIELDS if field.default is MISSING]


def _device() -> Schema:
    arch = {"type": ["array", "null"], "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
    return {
        "type": "object",
        "properties": {"kind": _enum(DEVICE_KINDS), "name": TEXT, "arch": arch},
        "required": ["kind", "name"],
    }


def _environment() -> Schema:
    versions = {"type": "object", "additionalProperties": {"type": ["string", "null"]}}
    text = {"type": ["string", "null"]}
    return {"type": "object", "properties": {"device": text, "driver": text, "versions": versions}}


def _forced() -> Schema:
    shape = _closed({"name": TEXT, "source": _enum(("explicit", "scope"))})
    return {**shape, "type": ["object", "null"], "description": "the backend that call or scope named"}


def _candidate() -> Schema:
    shape = _closed(
        {
            "name": {"type": "string", "minLength": 1},
            "version": TEXT,
            "tier": _enum(TIERS),
            "numerics": _enum(NUMERICS),
            "status": _enum(STATUSES),
            "stage": _enum(STAGES),
            "rank": {"type": ["integer", "null"], "minimum": 0},
            "reasons": _list(_reason()),
            "predicted_ms": MILLISECONDS,
            "measured_ms": MILLISECONDS,
            "measured_at": {"type": ["string", "null"], "description": "when it was measured, UTC"},
            "measured_by": _enum(MEASURED_BY, optional=True),
            "conversions": _list(TEXT),
        }
    )
    shape["required"] = [name for name in shape["required"] if name not in LATER]
    rejected = {"properties": {"status": {"const": "rejected"}}}
    return {**shape, "if": rejected, "then": {"properties": {"reasons": {"minItems": 1}}}}


def _reason() -> Schema:
    return _closed(
        {
            "code": _enum(REASON_CODES),
            "axis": TEXT,
            "got": PLAIN,
            "want": TEXT,
            "message": TEXT,
            "source": TEXT,
            "hint": {"type": ["string", "null"]},
        }
    )


def _change() -> Schema:
    return _closed({"axis": TEXT, "part": TEXT, "got": PLAIN, "want": PLAIN}, required=["axis", "got", "want"])
