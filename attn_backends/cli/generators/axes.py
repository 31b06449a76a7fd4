"""`docs/axes.md`: the one table as a page."""

from __future__ import annotations

from attn_backends.capability import REQUIRED, TABLE, Row
from attn_backends.cli.generators.markdown import code, codes, page, table
from attn_backends.fields import MISSING
from attn_backends.reason import show

INTRO = """\
Every property of an attention call, from the one table in `attn_backends/capability.py`. An *axis* is a name in
manifests and a reason code; its *fields* are those of `Request`, and flags of `attn-backends explain`.

A manifest's box declares allowed values per axis. An axis that a box leaves out takes its *neutral* value and nothing
else; an axis without a neutral value has to be declared. Axes marked *b* hold lengths, which the decision cache buckets."""


def render() -> str:
    """The page."""
    axes = table(("axis", "meaning", "legal in a box", "neutral", "fields"), (_axis(row) for row in TABLE))
    fields = table(
        ("field", "type", "default", "allowed", "meaning"),
        (
            (code(field.name), code(field.check.annotation), _default(field.default), field.check.allowed, field.doc)
            for row in TABLE
            for field in row.fields
        ),
    )
    return page("Axes and request fields", INTRO, "## Axes", axes, "## Request fields", fields)


def _axis(row: Row) -> tuple[str, ...]:
    parts = f" ({codes(row.parts)})" if row.parts else ""
    mark = " *b*" if row.bucketed else ""
    return (
        code(row.axis) + parts + mark, row.doc, row.kind.legal, _neutral(row), codes(field.name for field in row.fields),
    )  # fmt: skip


def _neutral(row: Row) -> str:
    if row.undeclared is not None:
        return f"undeclared is {code(show(row.undeclared))}"
    return "must be declared" if row.neutral is REQUIRED else code(show(row.neutral))


def _default(value: object) -> str:
    return "required" if value is MISSING else code(show(value))
