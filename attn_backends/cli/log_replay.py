"""`attn-backends log replay`: decide every request of a log again, with today's registry, and report what differs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from attn_backends.cli.log_source import filter_options, logs_argument, records_of
from attn_backends.cli.options import json_option
from attn_backends.cli.screen import BAD, GOOD, NAME, QUIET, console, print_json, text
from attn_backends.selector.log.phrase import device_phrase, printable, request_phrase

if TYPE_CHECKING:
    from attn_backends.registry.environment import Environment

KNOB = "ATTN_BACKENDS_LOG"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One decision of the log, and how today's differs from it."""

    record: dict[str, Any]
    differences: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        return {
            "id": self.record["id"], "request": self.record["request"], "device": self.record["device"],
            "backend": self.record["backend"], "differences": list(self.differences),
        }  # fmt: skip


@click.command("replay")
@logs_argument
@filter_options
@click.option("--then", is_flag=True, help="With the package versions of then, not with those of this machine.")
@json_option
@click.pass_context
def command(ctx: click.Context, /, logs: tuple[str, ...], then: bool, as_json: bool, **filters: Any) -> None:
    """Decide every request of a log again, on its own device and policy, and report what differs.

    Exits 1 if something differs. A request that was decided for a pretended device keeps its pretended packages.
    """
    last = {record["id"]: record for record in records_of(logs, **filters)}
    with _unlogged():
        replayed = [_replay(record, then=then) for record in last.values()]
    changed = [one for one in replayed if one.differences]
    if as_json:
        print_json(
            {
                "replayed": len(replayed),
                "same": len(replayed) - len(changed),
                "changed": [one.to_json() for one in changed],
            }
        )
    else:
        _draw(len(replayed), changed)
    if changed:
        ctx.exit(1)


def _replay(record: dict[str, Any], *, then: bool) -> Replayed:
    from attn_backends.selector.decision import Decision

    try:
        old = Decision.from_json(record)
    except (ValueError, KeyError, TypeError) as error:
        return Replayed(record=record, differences=(f"cannot be read by this version: {error}",))
    environment = None if then or old.environment.assume_met else _environment()
    return Replayed(record=record, differences=old.replay(environment=environment).differences)


def _environment() -> Environment:
    from attn_backends.cli.standing import environment_here
    from attn_backends.registry.registry import default_registry

    return environment_here(default_registry().snapshot())


@contextmanager
def _unlogged() -> Iterator[None]:
    """What is decided here is no call: it must not be appended to the log that is being read."""
    before = os.environ.pop(KNOB, None)
    try:
        yield
    finally:
        if before is not None:
            os.environ[KNOB] = before


def _draw(count: int, changed: list[Replayed]) -> None:
    screen = console()
    same = count - len(changed)
    screen.print(
        text(
            f"{count:,} decisions replayed: ",
            (f"{same:,} the same", GOOD),
            ", ",
            (f"{len(changed):,} different", BAD if changed else GOOD),
        )
    )
    for one in changed:
        record = one.record
        asked = f"{request_phrase(record['request'])} on {device_phrase(record['device'])}"
        screen.print(text("\n", (record["id"][:10], QUIET), " ", (asked, NAME)))
        for difference in one.differences:
            screen.print(text(f"  {printable(difference)}"))
