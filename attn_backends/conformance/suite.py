"""`run_suite`: plan, run and record: one whole run of the suite against one backend."""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Callable, Sequence

import attn_backends
from attn_backends.box import Box, wanted
from attn_backends.capability import TABLE
from attn_backends.conformance.checks import context_of
from attn_backends.conformance.engine import run_with
from attn_backends.conformance.gaps import Gap
from attn_backends.conformance.isolation import Job, OnResult, rehearsed_plan, run_isolated
from attn_backends.conformance.item import Item
from attn_backends.conformance.outcome import Outcome, Result
from attn_backends.conformance.plan import Plan, plan
from attn_backends.conformance.record import RunRecord
from attn_backends.conformance.spec import SPEC_VERSION
from attn_backends.registry.certificates import source_digest
from attn_backends.registry.environment import Environment
from attn_backends.registry.manifest import Manifest
from attn_backends.registry.registry import default_registry

TIMEOUTS = {"quick": 60.0, "full": 120.0, "deep": 600.0}  # seconds per item


def run_suite(
    backend: str,
    level: str = "quick",
    *,
    device: str = "cpu",
    only: Callable[[Item], bool] | None = None,
    only_text: str | None = None,
    workers: int = 2,
    timeout: float | None = None,
    on_plan: Callable[[Plan], None] | None = None,
    on_result: OnResult | None = None,
    isolated: bool = True,
    setup: str | None = None,
    path: Sequence[str] = (),
) -> RunRecord:
    """Run the suite at a level and return the record of it.

    backend: a registered name; with `setup`, registered here as well as in the workers
    only: keeps the items of a partial run, `only_text` says which in the record; device: a torch device
    isolated: in worker processes; False runs in this one, for debuggers
    Raises UnknownBackendError, ValueError for a level that is none, ManifestError for known gaps that cannot be read.
    """
    started, clock = dt.datetime.now(dt.UTC), time.perf_counter()
    manifest = default_registry().snapshot().get(backend)
    digest = source_digest(manifest)  # before anything is loaded: what changes during the run was not run
    facts = context_of(backend, device).facts
    job = Job(backend=backend, device=device, setup=setup, path=tuple(path))
    died = rehearsed_plan(job, level) if isolated and _plans_by_strange_code(manifest) else None
    planned = plan(manifest, level, facts) if died is None else Plan(items=())
    items = [item for item in planned.items if only is None or only(item)]
    chosen = dataclasses.replace(planned, items=tuple(items))
    if on_plan is not None:
        on_plan(chosen)
    results = (
        run_isolated(
            backend, items, device=device, timeout=timeout or TIMEOUTS[level], on_result=on_result, workers=workers,
            setup=setup, path=path,
        )
        if isolated
        else _run_here(backend, items, device, on_result)
    )  # fmt: skip
    further = [] if only is not None else [*_uncovered(chosen), *_not_run(chosen)]
    further += [] if died is None else [died]
    return RunRecord(
        backend=manifest.name, version=manifest.version, digest=digest, numerics=manifest.numerics,
        level=level, spec=SPEC_VERSION, suite=attn_backends.__version__, device=facts.to_json(),
        environment=_environment(manifest), volume=volume(manifest), results=(*results, *further),
        gaps=tuple(gap.raw for gap in planned.gaps), only=only_text, seconds=time.perf_counter() - clock,
        started=started.isoformat(timespec="seconds"), notes=(*planned.notes, *_gap_notes(planned.gaps, results, only is None)),
    )  # fmt: skip


def _plans_by_strange_code(manifest: Manifest) -> bool:
    """Whether planning asks a function of a third party, which may end or hold up the process."""
    return manifest.origin == "third_party" and manifest.offers("check")


def _run_here(backend: str, items: Sequence[Item], device: str, on_result: OnResult | None) -> list[Result]:
    context = context_of(backend, device)
    results = []
    for item in items:
        results.append(run_with(context, item))
        if on_result is not None:
            on_result(results[-1])
    return results


def _uncovered(planned: Plan) -> list[Result]:
    """A declared feature that no executed case shows is a failure."""
    return [
        Result(
            id=f"declared/{axis}={value}", outcome=Outcome.FAIL, clauses=("DECLARE-3",),
            message=f"{axis} {value} is declared, and no case of the suite shows it",
        )
        for axis, value in planned.uncovered
    ]  # fmt: skip


def _not_run(planned: Plan) -> list[Result]:
    return [
        Result(
            id=one.item.id, outcome=Outcome.NOT_RUN, clauses=one.item.clauses, message=f"needs {one.needs}"
        )
        for one in planned.not_run
    ]  # fmt: skip


def _environment(manifest: Manifest) -> dict[str, object]:
    """Versions of the packages that the manifest asks for, and of this one."""
    facts = Environment.current(requirement.name for requirement in manifest.requires).to_json()
    return {"versions": facts["versions"], "driver": facts["driver"]}


def volume(manifest: Manifest) -> dict[str, str]:
    """What a backend declares, per axis over all its boxes; an axis that no box writes out is left out."""
    found: dict[str, list[str]] = {}
    for box in manifest.boxes:
        for name, text in _declared(box):
            texts = found.setdefault(name, [])
            if text not in texts:
                texts.append(text)
    return {name: " | ".join(texts) for name, texts in found.items()}


def _declared(box: Box) -> list[tuple[str, str]]:
    found = []
    for row, entries in zip(TABLE, box.entries, strict=True):
        texts = list(dict.fromkeys(wanted(row, entry) for entry in entries if entry is not None))
        if texts and (row.axis in box.raw or any(part in box.raw for part in row.parts) or row.axis == "device"):
            found.append((row.axis, " / ".join(texts)))
    return found


def _gap_notes(gaps: Sequence[Gap], results: Sequence[Result], whole: bool) -> list[str]:
    """Gaps that have expired, that no case met, or in which something passes."""
    today = dt.datetime.now(dt.UTC).date()
    notes = [f"gap {gap.id}: expired on {gap.expires}" for gap in gaps if gap.expired(today)]
    met = [result for result in results if result.id.startswith("probe-gap/")]
    if gaps and whole and not met:
        notes.append("gaps: no case of the suite lies in any of them")
    notes += [f"unexpected pass in a gap: {result.id}" for result in met if result.outcome is Outcome.UNDERCLAIM]
    return notes
