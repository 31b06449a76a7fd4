"""The spec as data: its clauses by id, read from the Markdown beside this file. Imports no torch.

A clause is a heading `### GROUP-N: one sentence` and the text up to the next heading. Tests, mutants and reports name
clauses by id; the sentence is what reports print.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SPEC_VERSION = "1.0"

_HEADING = re.compile(r"^(#{1,3}) (.*)$")
_CLAUSE = re.compile(r"^([A-Z]+)-([1-9][0-9]*): (\S.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One promise: `MASK-3`, its sentence, and the text below it in Markdown."""

    id: str
    title: str
    text: str

    @property
    def group(self) -> str:
        """`MASK` of `MASK-3`."""
        return self.id.rpartition("-")[0]

    def __str__(self) -> str:
        return f"{self.id}: {self.title}"


@cache
def clauses(version: str = SPEC_VERSION) -> dict[str, Clause]:
    """Every clause of a version by id, in the order of the document.

    Raises FileNotFoundError for a version that is not shipped, ValueError for a document that breaks its own form.
    """
    text = Path(__file__).with_name(f"{version}.md").read_text(encoding="utf-8")
    return parse(text)


def parse(text: str) -> dict[str, Clause]:
    """The clauses of a spec's Markdown. Raises ValueError for a third-level heading that is none, and for an id used twice."""
    found: dict[str, Clause] = {}
    for heading, body in _sections(text):
        match = _CLAUSE.match(heading)
        if match is None:
            raise ValueError(f"spec: {heading!r} is not of the form GROUP-N: one sentence")
        group, number, title = match.groups()
        clause = Clause(id=f"{group}-{number}", title=title, text=body)
        if clause.id in found:
            raise ValueError(f"spec: {clause.id} is there twice")
        found[clause.id] = clause
    return found


def _sections(text: str) -> list[tuple[str, str]]:
    """Third-level headings with the text below each, up to the next heading of any level."""
    sections: list[tuple[str, list[str]]] = []
    inside = False
    for line in text.splitlines():
        heading = _HEADING.match(line)
        if heading is None:
            if inside:
                sections[-1][1].append(line)
            continue
        inside = heading[1] == "###"
        if inside:
            sections.append((heading[2], []))
    return [(title, "\n".join(body).strip()) for title, body in sections]
