"""`attn-backends conformance list`: the clauses of the spec, by group. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from attn_backends.cli.failure import Failure
from attn_backends.cli.options import json_option
from attn_backends.cli.screen import NAME, QUIET, console, print_json, table, text

if TYPE_CHECKING:
    from attn_backends.conformance.spec import Clause


@click.command("list")
@click.argument("words", nargs=-1)
@click.option("--full", is_flag=True, help="The text of each clause too.")
@json_option
def command(words: tuple[str, ...], full: bool, as_json: bool) -> None:
    """The clauses of the spec; with WORDS, those of a group (MASK), one (MASK-3), or those that hold all words."""
    from attn_backends.conformance.spec import SPEC_VERSION, clauses

    known = list(clauses().values())
    names = {name for one in known for name in (one.id, one.group)}
    found = [one for one in known if all(_holds(one, word, names) for word in words)]
    if as_json:
        rows = [{"id": one.id, "group": one.group, "title": one.title, "text": one.text} for one in found]
        print_json({"spec": SPEC_VERSION, "clauses": rows})
        return
    if not found:
        raise Failure(f"no clause holds {' '.join(words)}", "without words, the command shows every clause")
    made = table("clause", "promise")
    for one in found:
        body = text((one.title, ""), (f"\n{one.text}\n", QUIET)) if full and one.text else text(one.title)
        made.add_row(text((one.id, NAME)), body)
    console().print(made)
    click.echo(f"spec {SPEC_VERSION}, {len(found)} clauses")


def _holds(clause: Clause, word: str, names: set[str]) -> bool:
    """Whether a word names the clause or its group; a word that names nothing is looked for in the text."""
    if word.upper() in names:
        return word.upper() in (clause.id, clause.group)
    return word.lower() in f"{clause} {clause.text}".lower()
