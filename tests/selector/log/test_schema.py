"""The schema: generated from the table, shipped, and strict."""

from __future__ import annotations

import dataclasses
import json

import jsonschema
import pytest

from attn_backends.capability import TABLE
from attn_backends.fields import Check
from attn_backends.request_fields import FIELDS
from attn_backends.selector.log.schema import _TYPES, SHIPPED, decision_schema, render_schema, validate
from attn_backends.selector.log.shape import misfit
from tests.selector.log.records import candidate, many, reason, record, request, unserved


def test_the_shipped_file_is_up_to_date() -> None:
    """A change of the table that forgets `make generate` is caught here."""
    assert SHIPPED.read_text(encoding="utf-8") == render_schema(), "run: make generate"


def test_it_is_a_legal_schema() -> None:
    """JSON Schema 2020-12 itself accepts it."""
    jsonschema.Draft202012Validator.check_schema(decision_schema())


def test_every_axis_is_a_code_and_every_field_is_known() -> None:
    """Nothing of the table is missing."""
    schema = decision_schema()
    codes = schema["properties"]["candidates"]["items"]["properties"]["reasons"]["items"]["properties"]["code"]["enum"]
    assert {row.axis for row in TABLE} <= set(codes)
    assert set(schema["properties"]["request"]["properties"]) == {field.name for field in FIELDS}


def test_every_kind_of_field_has_a_json_type() -> None:
    """A new annotation in the table needs one line in the schema; this says so."""
    assert {field.check.annotation for field in FIELDS} <= set(_TYPES)
    assert {field.name for field in dataclasses.fields(Check)} >= {"annotation", "choices"}


FULL = request(
    softcap=50.0, softmax_scale=1, block_mask_size=(64, 128), page_size=16, kv_layout="HND", q_strides=(8, 4, 2, 1),
    mask="bool", dropout_p=0.5, return_lse=True, k_granularity="per_head", total_q=7, unknown=("later",),
)  # fmt: skip
VALID = {
    "plain": record(),
    "unserved": unserved(),
    "every kind of field": record(request=FULL),
    "cpu": record(device={"kind": "cpu", "name": "cpu", "arch": None}),
    "no architecture": record(device={"kind": "cpu", "name": "cpu"}),
    "forced": unserved(forced={"name": "flex", "source": "scope"}),
    "down-cast": record(downcast="bfloat16"),
    "no candidates": unserved(candidates=[], nearest=[]),
    "reason with a list": record(candidates=[candidate("x", reasons=[reason("arch", [9, 0])])]),
    "times": record(candidates=[candidate("x", "selected", measured_ms=0.5, predicted_ms=1)]),
    "with envelope": many(1)[0],
}


@pytest.mark.parametrize("name", VALID)
def test_valid(name: str) -> None:
    """Real records pass, after a trip through JSON too."""
    validate(VALID[name])
    validate(json.loads(json.dumps(VALID[name])))
    assert misfit(json.loads(json.dumps(VALID[name])), decision_schema()) is None


INVALID = {
    "unknown code": record(candidates=[candidate("x", reasons=[reason("because")])]),
    "unknown key": record(extra=1),
    "unknown request field": record(request={**request(), "colour": "red"}),
    "required field missing": record(request={"dtype": "bfloat16"}),
    "unknown source": record(source="luck"),
    "forced by nobody": record(forced={"name": "flex", "source": "priority"}),
    "short id": record(id="abc"),
    "refused without a reason": record(candidates=[candidate("x", reasons=[])]),
    "unknown stage": record(candidates=[candidate("x", stage="later")]),
    "rank is text": record(candidates=[candidate("x", rank="1")]),
    "half an envelope": record(time="2026-03-04T10:00:00.000000+00:00"),
    "local time": {**many(1)[0], "time": "2026-03-04T10:00:00"},
    "dtype of nowhere": record(request={**request(), "dtype": "float12"}),
    "true is no number": record(request={**request(), "seq_q": True}),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid(name: str) -> None:
    """The schema is closed: what it does not know is wrong."""
    with pytest.raises(jsonschema.ValidationError):
        validate(INVALID[name])


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (record(candidates=[{"name": "x"}]), "candidates[0].version: missing"),
        (record(candidates=[candidate("x", rank="1")]), "candidates[0].rank: expected integer or null, got string"),
        (record(backend=1), "backend: expected string or null, got integer"),
        (record(request={**request(), "seq_q": True}), "request.seq_q: expected integer, got boolean"),
        (record(nearest=None), "nearest: expected array, got null"),
        ([], "record: expected object, got array"),
    ],
    ids=str,
)  # fmt: skip
def test_misfit_names_the_place(broken: object, problem: str) -> None:
    """The reader's light check says where a line is wrong."""
    assert misfit(broken, decision_schema()) == problem


def test_misfit_lets_the_future_pass() -> None:
    """A newer writer may add keys and words; they do not make its log unreadable."""
    newer = record(extra=1, candidates=[candidate("x", reasons=[reason("new_axis")])])
    assert misfit(newer, decision_schema()) is None
