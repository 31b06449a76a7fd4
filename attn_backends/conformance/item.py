"""`Item`: one check on one case, the unit that is planned, run, reported and replayed. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from attn_backends.conformance.case import Case, parse


@dataclass(frozen=True, slots=True)
class Item:
    """`check` is a name of `checks.CHECKS`; `clauses` are the ones it proves on this case."""

    check: str
    case: Case
    clauses: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """`check/case-id`, which replays it."""
        return f"{self.check}/{self.case.id}"


def parse_item(text: str) -> tuple[str, Case]:
    """(check, case) of an id. Raises ValueError for anything else."""
    check, slash, case = text.partition("/")
    if not slash:
        raise ValueError(f"{text!r} is no item id; it reads check/case")
    return check, parse(case)
