"""Command-line flags of a request, one per field of the one table: a new row there is a new flag here, without an edit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import click

from attn_backends.fields import MISSING, Field
from attn_backends.reason import frozen, show
from attn_backends.request_fields import FIELDS

PREFIX = "field_"  # of parameter names, so that a field never meets another option
NOT_ASKED = ("unknown",)  # what newer versions ask for; no flag can
LINE = 78  # columns that click writes on a terminal of 80
NONE = object()  # an explicit `none`, which click would take for "not given"


class FieldValue(click.ParamType):  # type: ignore[type-arg]  # not generic in every click that is allowed
    """A value of one field: read by the field's type, judged by its check."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.name = _metavar(field)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value, or a usage error that says what is allowed."""
        if not isinstance(value, str):
            return value
        read = _READERS.get(self.field.check.annotation.removesuffix(" | None"), _read_json)
        optional = self.field.check.legal(None)
        try:
            found = None if optional and value.lower() == "none" else read(value)
        except ValueError:
            found = value
        if not self.field.check.legal(found):
            self.fail(f"got {value!r}; allowed: {self.field.check.allowed}", param, ctx)
        return NONE if found is None else found


class FieldOption(click.Option):
    """A flag of a request's field; help shows it in a section of its own."""

    section = "Request"


def field_options() -> Iterator[click.Option]:
    """One flag per field, in the order of the table."""
    for field in FIELDS:
        if field.name not in NOT_ASKED:
            yield _option(field)


def fields_given(ctx: click.Context) -> dict[str, Any]:
    """The fields that the command line names, with their values."""
    given = {name: value for name, value in ctx.params.items() if name.startswith(PREFIX) and value is not None}
    return {name.removeprefix(PREFIX): None if value is NONE else value for name, value in given.items()}


def _option(field: Field) -> click.Option:
    flag = "--" + field.name.replace("_", "-")
    name = PREFIX + field.name
    if field.check.annotation == "bool":
        return FieldOption([name, f"{flag}/--no-{flag[2:]}"], default=None, help=_help(field))
    return FieldOption([name, flag], type=_type(field), default=None, **_shown(field, flag))


def _type(field: Field) -> Any:
    return click.Choice(field.check.choices) if field.check.choices else FieldValue(field)


def _shown(field: Field, flag: str) -> dict[str, Any]:
    """Help and metavar: choices stand beside the flag where a line of a terminal holds them, else in the help."""
    choices = field.check.choices or ()
    if len(f"  {flag} [{'|'.join(choices)}]") <= LINE:
        return {"help": _help(field)}
    return {"help": _help(field, f": {', '.join(choices)}"), "metavar": field.name.rpartition("_")[2].upper()}


def _help(field: Field, choices: str = "") -> str:
    doc = (field.doc or field.check.allowed) + choices
    if field.default is MISSING or field.default in (None, False, ()):
        return doc
    return f"{doc}  [{show(field.default)}]"


def _metavar(field: Field) -> str:
    kinds = field.check.annotation.removesuffix(" | None")
    return kinds.replace("tuple[int, ...]", "int,...").replace("tuple[int, int]", "int,int").replace(" | ", "|")


def _read_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.strip("()[] ").split(","))


def _read_size_or_pair(text: str) -> Any:
    return int(text) if text.isdigit() else _read_numbers(text)


def _read_json(text: str) -> Any:
    return frozen(json.loads(text))


_READERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "tuple[int, ...]": _read_numbers,
    "int | tuple[int, int]": _read_size_or_pair,
}
