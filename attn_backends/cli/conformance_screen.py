"""How a run looks on the terminal: what is wrong first, the verdict last. Texts of backends are shown as they are, cleaned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from attn_backends.cli.screen import BAD, GOOD, NAME, QUIET, WARN, console, text

if TYPE_CHECKING:
    from rich.console import Console

    from attn_backends.cli.conformance_run import Outcome
    from attn_backends.conformance.outcome import Result
    from attn_backends.conformance.record import RunRecord

MOST = 20  # failing items written out; --out has all


def print_outcome(outcome: Outcome) -> None:
    """Everything, or with --track only what changed; then files, certificate and the headline."""
    from attn_backends.conformance.report.headline import headline, volume_line

    screen, record = console(), outcome.record
    if outcome.changes is None:
        _print_wrong(screen, record)
        _print_clauses(screen, record)
        _print_notes(screen, record)
        screen.print(text((volume_line(record), QUIET)), soft_wrap=not screen.is_terminal)
    else:
        _print_changes(screen, outcome)
    for path in outcome.written:
        click.echo(f"written: {path}")
    if outcome.certificate is not None:
        screen.print(text("certificate: ", (str(outcome.certificate), GOOD)), soft_wrap=True)
    for obstacle in outcome.obstacles:
        screen.print(text(("not certified: ", BAD), obstacle), soft_wrap=True)
    screen.print(text((headline(record), GOOD if record.conforms else BAD)), soft_wrap=True)


def _print_wrong(screen: Console, record: RunRecord) -> None:
    from attn_backends.conformance.report.verdict import failing, warnings

    wrong = failing(record)
    for result in wrong[:MOST]:
        _print_item(screen, record, result)
    if len(wrong) > MOST:
        screen.print(text((f"... and {len(wrong) - MOST:,} more; --out DIR writes all\n", WARN)))
    found = warnings(record)
    for result in found[:MOST]:
        _print_item(screen, record, result, WARN)
    if len(found) > MOST:
        screen.print(text((f"... and {len(found) - MOST:,} more UNDERCLAIM", WARN)))


def _print_item(screen: Console, record: RunRecord, result: Result, style: str = BAD) -> None:
    from attn_backends.conformance.report.plain import clean
    from attn_backends.conformance.report.replay import replay_command
    from attn_backends.conformance.report.verdict import message_of

    named = text((f"{result.outcome} ", style), (result.id, NAME), f"  {', '.join(result.clauses)}")
    screen.print(named, soft_wrap=True)
    if said := message_of(result):
        screen.print(text(clean(said, 1200)), soft_wrap=True)
    screen.print(text((replay_command(record, result.id), QUIET), "\n"), soft_wrap=True)


def _print_clauses(screen: Console, record: RunRecord) -> None:
    from attn_backends.conformance.report.clauses import most_failed

    for row in most_failed(record):
        share = f"{row.failed:,} of {row.total:,} items failed"
        screen.print(text(("clause: ", WARN), (row.id, NAME), f" {row.title}: {share}"), soft_wrap=True)


def _print_notes(screen: Console, record: RunRecord) -> None:
    from attn_backends.conformance.report.plain import clean

    for note in record.errors:
        screen.print(text(("error: ", BAD), clean(note)), soft_wrap=True)
    for note in record.remarks:
        screen.print(text(("note: ", WARN), clean(note)), soft_wrap=True)


def _print_changes(screen: Console, outcome: Outcome) -> None:
    changes = outcome.changes or []
    for change in changes:
        screen.print(text((str(change), BAD if change.worse else GOOD)), soft_wrap=True)
    if not changes:
        screen.print(text(("nothing changed", QUIET)))
