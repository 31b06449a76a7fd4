"""`attn-backends conformance run NAME`: the suite against one backend; reports, comparison with an older run, certificate."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from attn_backends.cli.conformance_device import chosen_device, device_option
from attn_backends.cli.failure import Failure
from attn_backends.cli.needs_torch import need_torch
from attn_backends.cli.options import BACKEND, POSITIVE, json_option
from attn_backends.cli.screen import print_json

if TYPE_CHECKING:
    from attn_backends.conformance.record import RunRecord
    from attn_backends.conformance.report.track import Change
    from attn_backends.device import Device
    from attn_backends.registry.manifest import Manifest

LEVELS = ("quick", "full", "deep")


@dataclass(kw_only=True)
class Outcome:
    """What came of the command, beside the record."""

    record: RunRecord
    written: list[Path] = field(default_factory=list)
    changes: list[Change] | None = None
    certificate: Path | None = None
    obstacles: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether the command exits with 0."""
        return self.record.conforms and not self.obstacles and not any(one.worse for one in self.changes or ())


@click.command("run")
@click.argument("name", type=BACKEND)
@click.option("--level", type=click.Choice(LEVELS), help="How much is run.  [quick; full with --certify]")
@click.option("--only", metavar="ID|GLOB|CLAUSE", help="Only these items: an id, a pattern, or a clause (MASK-3).")
@device_option(pretended=False)
@click.option("--workers", type=click.IntRange(0, 256), default=2, help="Processes; 0 is this one, for debuggers.  [2]")
@click.option("--timeout", type=POSITIVE, metavar="S", help="Seconds that one item may take.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Write report.json, .md, .html, junit.xml."
)
@click.option(
    "--track", type=click.Path(path_type=Path, dir_okay=False), help="Print only what changed since this report.json."
)
@click.option("--certify", is_flag=True, help="Test the suite itself too, and write a certificate if all is well.")
@click.option("--unmeasured", is_flag=True, help="Certify without testing the suite; the certificate says so.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, name: str, level: str | None, only: str | None, device: str | None, workers: int,
    timeout: float | None, out: Path | None, track: Path | None, certify: bool, unmeasured: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run the suite against a backend.

    The last line is the verdict. Exits 1 if something failed, if --track found something worse, or if --certify was asked
    for and is not deserved; whatever fails comes with the command that runs it again.
    """
    from attn_backends.cli.conformance_screen import print_outcome
    from attn_backends.conformance.report.json_report import read_report, report_json
    from attn_backends.registry.registry import default_registry

    manifest = default_registry().snapshot().get(name)
    facts = chosen_device(device, manifest)
    if facts.pretended:
        raise Failure(
            f"{facts.name} is pretended, nothing can run there",
            f"attn-backends conformance plan {name} --device {device}",
        )
    need_torch("the suite runs kernels")
    earlier = read_report(track) if track else None
    chosen = level or ("full" if certify else "quick")
    strength = certify and not unmeasured
    record = _run(manifest, chosen, facts, only=only, workers=workers, timeout=timeout, strength=strength)
    outcome = Outcome(record=record)
    if out is not None:
        outcome.written = _write(record, out)
    if earlier is not None:
        from attn_backends.conformance.report.track import track as changes_between

        outcome.changes = changes_between(earlier, record)
    if certify:
        _certify(outcome, manifest, unmeasured=unmeasured)
    if as_json:
        print_json(_json(outcome, report_json(record)))
    else:
        print_outcome(outcome)
    if not outcome.good:
        ctx.exit(1)


def _run(
    manifest: Manifest, level: str, facts: Device, *, only: str | None, workers: int, timeout: float | None, strength: bool
) -> RunRecord:  # fmt: skip
    from attn_backends.cli.conformance_progress import Counts
    from attn_backends.cli.run_bar import RunBar
    from attn_backends.conformance.devices import torch_word
    from attn_backends.conformance.gap_errors import judge_gaps
    from attn_backends.conformance.selection import selection
    from attn_backends.conformance.suite import run_suite

    name = manifest.name
    with RunBar(f"{name} {level}") as bar:
        record = run_suite(
            name, level, device=torch_word(facts.kind), only=selection(only) if only else None, only_text=only, timeout=timeout,
            workers=workers, isolated=workers > 0, on_plan=lambda made: bar.at(0, len(made.items)), on_result=Counts(bar).on_result,
        )  # fmt: skip
    if only and not record.results:
        _nothing_kept(manifest, level, facts, only)
    record = _with_load_error(judge_gaps(record, manifest, facts), manifest)
    return _with_self_test(record, manifest) if strength else record


def _nothing_kept(manifest: Manifest, level: str, facts: Device, only: str) -> NoReturn:
    from attn_backends.conformance.plan import plan
    from attn_backends.conformance.selection import nearest

    near = nearest(only, plan(manifest, level, facts).items)
    listed = f"attn-backends conformance plan {manifest.name} --level {level} --items"
    raise Failure(f"--only {only} keeps no item" + (f"; {near}" if near else ""), listed)


def _with_load_error(record: RunRecord, manifest: Manifest) -> RunRecord:
    """Where nothing passed, an error that says so if the backend does not even load."""
    import dataclasses

    from attn_backends.cli.load_check import load_all
    from attn_backends.conformance.outcome import Outcome
    from attn_backends.conformance.record import ERROR

    counts = record.counts()
    if counts[Outcome.PASS] or counts[Outcome.NOT_RUN] == len(record.results) or manifest.origin == "in_process":
        return record
    (found,) = load_all([manifest.name])
    if found.error is None:
        return record
    return dataclasses.replace(record, notes=(*record.notes, f"{ERROR}{manifest.name} does not load: {found.error}"))


def _with_self_test(record: RunRecord, manifest: Manifest) -> RunRecord:
    """The record with the suite's own strength, which takes minutes: measured where nothing else is in the way."""
    import dataclasses

    from attn_backends.cli.conformance_self_test import measure
    from attn_backends.conformance.certificate import obstacles

    if obstacles(record, manifest, unmeasured=True):
        return record
    return dataclasses.replace(record, self_test=measure().summary())


def _write(record: RunRecord, folder: Path) -> list[Path]:
    from attn_backends.conformance.report.writing import write_reports

    return write_reports(record, folder)


def _certify(outcome: Outcome, manifest: Manifest, *, unmeasured: bool) -> None:
    from attn_backends.conformance.certificate import CertificationError, certify, obstacles

    others = obstacles(outcome.record, manifest, unmeasured=True)  # with any of these the suite was not measured
    try:
        outcome.certificate = certify(outcome.record, manifest, unmeasured=unmeasured)
    except CertificationError as error:
        outcome.obstacles = others or error.obstacles


def _json(outcome: Outcome, report: dict[str, Any]) -> dict[str, Any]:
    changes = None if outcome.changes is None else [change.to_json() for change in outcome.changes]
    certificate = None if outcome.certificate is None else str(outcome.certificate)
    return {
        "report": report, "written": [str(path) for path in outcome.written], "changes": changes,
        "certificate": certificate, "in_the_way": outcome.obstacles,
    }  # fmt: skip
