"""`--only`: which items of a plan a partial run keeps; an id, a pattern over ids, a check, a clause or a group of them. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from attn_backends.box import near_names
from attn_backends.conformance.item import Item
from attn_backends.conformance.spec import clauses


def selection(text: str) -> Callable[[Item], bool]:
    """Whether an item is meant by `--only TEXT`.

    `MASK-3` and `MASK` are a clause and a group of the spec, in any case of letters; `oracle/fwd-*` a pattern; `oracle` a
    check; anything else an id.
    """
    known, name = clauses().values(), text.upper()
    if name in {clause.id for clause in known}:
        return lambda item: name in item.clauses
    if name in {clause.group for clause in known}:
        return lambda item: any(one.startswith(f"{name}-") for one in item.clauses)
    if any(mark in text for mark in "*?["):
        return lambda item: fnmatchcase(item.id, text)
    return lambda item: text in (item.id, item.check)


def nearest(text: str, items: Iterable[Item]) -> str | None:
    """`did you mean MASK-3?` for a text that keeps none of these items; None where nothing is near."""
    known = {clause.id for clause in clauses().values()}
    here = {name for item in items for name in (item.check, *item.clauses)}
    if text.upper() in known - here:
        return "no item of this plan is about that clause"
    return near_names(text, here) or near_names(text.upper(), here)
