"""`attn-backends conformance plan NAME`: what a run would do, what it could not, and why. Runs nothing, on any device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from attn_backends.cli.conformance_device import chosen_device, device_option
from attn_backends.cli.conformance_run import LEVELS
from attn_backends.cli.needs_torch import need_torch
from attn_backends.cli.options import BACKEND, json_option
from attn_backends.cli.screen import BAD, NAME, QUIET, WARN, console, print_json, table, text

if TYPE_CHECKING:
    from attn_backends.conformance.item import Item
    from attn_backends.conformance.plan import Plan
    from attn_backends.device import Device


@click.command("plan")
@click.argument("name", type=BACKEND)
@click.option("--level", type=click.Choice(LEVELS), default="quick", help="How much would be run.  [quick]")
@device_option(pretended=True)
@click.option("--items", "every", is_flag=True, help="List every item by its id.")
@json_option
@click.pass_context
def command(ctx: click.Context, name: str, level: str, device: str | None, every: bool, as_json: bool) -> None:
    """What will run against a backend, what cannot, and why; for this machine or a pretended device.

    Exits 1 if nothing would run there.
    """
    from attn_backends.registry.registry import default_registry

    manifest = default_registry().snapshot().get(name)
    facts = chosen_device(device, manifest)
    need_torch("the suite's checks are made of tensors")
    from attn_backends.conformance.plan import plan

    made = plan(manifest, level, facts)
    if as_json:
        print_json(_json(name, level, facts, made))
    else:
        _print(made, f"{name} {manifest.version}, {level}, on {facts.describe()}", every=every)
    if not made.items:
        if made.not_run and not as_json:
            elsewhere = made.not_run[0].needs.partition(" or ")[0]
            click.echo(f"hint: attn-backends conformance plan {name} --device {elsewhere}")
        ctx.exit(1)


def _json(name: str, level: str, facts: Device, made: Plan) -> dict[str, Any]:
    return {
        "backend": name, "level": level, "device": facts.to_json(),
        "items": [{"id": item.id, "clauses": list(item.clauses)} for item in made.items],
        "not_run": [
            {"id": one.item.id, "clauses": list(one.item.clauses), "needs": one.needs} for one in made.not_run
        ],
        "uncovered": [{"axis": axis, "value": value} for axis, value in made.uncovered], "notes": list(made.notes),
    }  # fmt: skip


def _print(made: Plan, title: str, *, every: bool) -> None:
    screen = console()
    screen.print(text((title, NAME)))
    if every:
        for item in made.items:
            click.echo(item.id)
        for one in made.not_run:
            click.echo(f"{one.item.id}  (needs {one.needs})")
    else:
        _print_checks(screen, made)
    for axis, value in made.uncovered:
        screen.print(text(("fails: ", BAD), f"{axis} {value} is declared, and no case of the suite shows it"))
    for note in made.notes:
        screen.print(text(("note: ", WARN), note), soft_wrap=True)
    screen.print(
        text(f"{len(made.items):,} items run, {len(made.not_run):,} need other devices, {_clauses(made.items)} clauses")
    )


def _print_checks(screen: Any, made: Plan) -> None:
    """One line per check; the many refusals, one per axis, in one."""
    counts, examples = Counter[str](), dict[str, str]()
    for item in made.items:
        kind = _kind(item)
        counts[kind] += 1
        examples.setdefault(kind, item.id)
    made_table = table("check", "items", "such as")
    for column, width in zip(made_table.columns, (max(map(len, counts), default=0), len("items"), None), strict=True):
        column.no_wrap, column.overflow, column.min_width = True, "ellipsis", width
    for kind, count in counts.most_common():
        made_table.add_row(text((kind, NAME)), f"{count:,}", text((examples[kind], QUIET)))
    if counts:
        screen.print(made_table)


def _kind(item: Item) -> str:
    head, dash, _axis = item.check.partition("-")
    return f"{head}-*" if dash and head in ("refused", "probe") else item.check


def _clauses(items: Iterable[Item]) -> int:
    return len({clause for item in items for clause in item.clauses})
