"""The JSON Schema of `report.json`, `attn.conformance/1`; the shipped copy stands in `schema/`, a test keeps it the same."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from attn_backends.conformance.outcome import Outcome
from attn_backends.conformance.record import LEVELS, SCHEMA, RunRecord
from attn_backends.conformance.spec import SPEC_VERSION, clauses
from attn_backends.registry.manifest import NUMERICS

SHIPPED = Path(__file__).with_name("schema") / "conformance-1.schema.json"

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
SECONDS: Schema = {"type": "number", "minimum": 0}
OBJECT: Schema = {"type": "object"}


def report_schema() -> Schema:
    """JSON Schema 2020-12 of a report; outcomes, levels, numerics and clauses are closed lists."""
    properties = {
        "schema": {"const": SCHEMA},
        "headline": TEXT,
        **_record(),
        "conforms": {"type": "boolean"},
        "counts": _counts(),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SCHEMA,
        "description": "One run of the conformance suite against one backend.",
        **_closed(properties),
    }  # fmt: skip


def render_schema() -> str:
    """The text of the shipped file."""
    return json.dumps(report_schema(), indent=2) + "\n"


def validate(report: Mapping[str, Any]) -> None:
    """Raise `jsonschema.ValidationError` unless the report is a legal one. Needs the package jsonschema."""
    jsonschema = importlib.import_module("jsonschema")
    jsonschema.Draft202012Validator(report_schema()).validate(dict(report))


def _record() -> Schema:
    known: Schema = {
        "backend": {"type": "string", "minLength": 1},
        "numerics": {"enum": list(NUMERICS)},
        "level": {"enum": list(LEVELS)},
        "device": OBJECT,
        "environment": OBJECT,
        "volume": {"type": "object", "additionalProperties": TEXT},
        "results": {"type": "array", "items": _result()},
        "gaps": {"type": "array", "items": OBJECT},
        "self_test": {"anyOf": [{"type": "null"}, _self_test()]},
        "only": {"type": ["string", "null"]},
        "seconds": SECONDS,
        "notes": {"type": "array", "items": TEXT},
    }
    return {field.name: known.get(field.name, TEXT) for field in fields(RunRecord)}


def _result() -> Schema:
    return _closed(
        {
            "id": {"type": "string", "minLength": 1},
            "outcome": {"enum": [str(outcome) for outcome in Outcome]},
            "clauses": {"type": "array", "items": {"enum": list(clauses(SPEC_VERSION))}},
            "message": TEXT,
            "seconds": SECONDS,
            "ratios": {"type": "object", "additionalProperties": {"type": "number"}},
        }
    )


def _self_test() -> Schema:
    return _closed(dict.fromkeys(("mutants", "killed", "controls", "controls_failed"), COUNT))


def _counts() -> Schema:
    return _closed({str(outcome): COUNT for outcome in Outcome})


def _closed(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
