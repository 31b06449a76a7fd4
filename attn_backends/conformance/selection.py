"""`--only`: which items of a plan a partial run keeps; an id, a pattern over ids, a clause or a group of clauses. No torch."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

from attn_backends.conformance.item import Item
from attn_backends.conformance.spec import clauses


def selection(text: str) -> Callable[[Item], bool]:
    """Whether an item is meant by `--only TEXT`.

    `MASK-3` and `MASK` are a clause and a group of the spec; `oracle/fwd-*` a pattern; `oracle` a check; anything else an id.
    """
    known = clauses().values()
    if text in {clause.id for clause in known}:
        return lambda item: text in item.clauses
    if text in {clause.group for clause in known}:
        return lambda item: any(name.startswith(f"{text}-") for name in item.clauses)
    if any(mark in text for mark in "*?["):
        return lambda item: fnmatchcase(item.id, text)
    return lambda item: text in (item.id, item.check)
