"""`RequestFields`: the dataclass whose fields are those of the one table. Its typed face is the generated stub beside it.

`make generate` rewrites `request_fields.pyi` from the table; `make check` fails when it is stale.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from attn_backends.capability import TABLE, Row
from attn_backends.fields import MISSING, Field


def fields_of(table: Iterable[Row]) -> tuple[Field, ...]:
    """Every request field of the table, in its order."""
    return tuple(field for row in table for field in row.fields)


def make_record(name: str, fields: Iterable[Field]) -> type[Any]:
    """A frozen, keyword-only, slotted dataclass of these fields."""
    spec = [
        (field.name, Any) if field.default is MISSING else (field.name, Any, dataclasses.field(default=field.default))
        for field in fields
    ]
    namespace = {"__module__": __name__}
    return dataclasses.make_dataclass(name, spec, frozen=True, kw_only=True, slots=True, namespace=namespace)


FIELDS = fields_of(TABLE)
RequestFields: Any = make_record("RequestFields", FIELDS)
