"""`attn-backends list`: every backend on one screen, and whether it is ready here. Runs no plugin code, imports no torch."""

from __future__ import annotations

import textwrap

import click

from attn_backends.cli.options import json_option
from attn_backends.cli.plain_table import Cell, print_table, say, screen_width
from attn_backends.cli.reach import reach, reach_phrase
from attn_backends.cli.screen import BAD, GOOD, NAME, QUIET, WARN, print_json
from attn_backends.cli.standing import BROKEN, READY, Standing, standings

WIDE = 120  # columns from which every fact has a column of its own
WIDE_HEADS = ("backend", "version", "priority", "tier", "numerics", "origin", "runs on", "boxes", "here")
NARROW_HEADS = ("backend", "prio", "kind", "runs on", "here")


@click.command("list")
@json_option
def command(as_json: bool) -> None:
    """Every backend, and whether it is ready on this machine.

    Ready means that its requirements are met and nothing forbids it; whether it serves a call is `explain`'s answer.
    """
    found = standings()
    if as_json:
        print_json({"backends": [one.to_json() for one in found]})
        return
    if screen_width() >= WIDE:
        print_table(WIDE_HEADS, [_wide(one) for one in found], elastic=WIDE_HEADS.index("runs on"))
    else:
        print_table(NARROW_HEADS, [_narrow(one) for one in found], elastic=NARROW_HEADS.index("runs on"))
    _print_reasons([one for one in found if one.status != READY])


def _wide(one: Standing) -> list[Cell]:
    facts = one.to_json()
    plain = [[(str(facts.get(key, "-")), "")] for key in ("version", "priority", "tier", "numerics", "origin")]
    return [[(one.name, NAME)], *plain, [(_where(one), "")], [(str(facts.get("boxes", "-")), "")], [_status(one)]]


def _narrow(one: Standing) -> list[Cell]:
    """Two lines a backend."""
    facts = one.to_json()
    boxes = len(one.manifest.boxes) if one.manifest else None
    return [
        [(one.name, NAME), (f"{facts.get('version', '-')} {one.origin}", QUIET)],
        [(str(facts.get("priority", "-")), "")],
        [(str(facts.get("tier", "-")), ""), (str(facts.get("numerics", "")), QUIET)],
        [(_where(one), ""), ("" if boxes is None else f"{boxes} box{'es' if boxes != 1 else ''}", QUIET)],
        [_status(one)],
    ]


def _where(one: Standing) -> str:
    return "-" if one.manifest is None else reach_phrase(reach(one.manifest))


def _status(one: Standing) -> tuple[str, str]:
    return one.word, {READY: GOOD, BROKEN: BAD}.get(one.status, WARN)


def _print_reasons(unready: list[Standing]) -> None:
    if unready:
        click.echo()
    groups: dict[tuple[str, str], list[str]] = {}
    for one in unready:
        groups.setdefault((one.why, BAD if one.status == BROKEN else WARN), []).append(one.name)
    for (why, style), names in groups.items():
        for line in _wrapped(", ".join(names), ""):
            say((line, NAME))
        for line in _wrapped(why, "  "):
            say((line, style))


def _wrapped(said: str, indent: str) -> list[str]:
    return textwrap.wrap(said, screen_width(), initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
