"""What is wrong with the known gaps of a backend, as notes that fail the run.

A gap whose case passes, a gap that no case lies in, and one whose time is over. Which gap a case lies in is the selector's
answer, read from the reasons of its refusal: one file, one reader.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime

import attn_backends
from attn_backends.conformance.case_request import request_of
from attn_backends.conformance.gaps import Gap, read_gaps
from attn_backends.conformance.item import parse_item
from attn_backends.conformance.outcome import Outcome
from attn_backends.conformance.record import ERROR, RunRecord
from attn_backends.device import Device
from attn_backends.errors import UnfitBackendError
from attn_backends.reason import Reason
from attn_backends.registry.manifest import Manifest

CHECK = (
    "probe-gap"  # runs the kernel past the selector on a case that a gap refuses: right means that the gap is closed
)
CHECKED = ("oracle", "gradients", CHECK)
_SOURCE = re.compile(r"\[\[gap\]\] (\d+)$")
_SAID_BY_THE_RUN = ("gap ", "gaps: ", "unexpected pass in a gap: ")  # the same in passing, without failing the run


def judge_gaps(record: RunRecord, manifest: Manifest, device: Device, *, today: date | None = None) -> RunRecord:
    """The record with an error note for every gap that is wrong. A partial run asks no gap for its case."""
    gaps = {gap.place: gap for gap in read_gaps(manifest)}  # as the selector's reasons name them
    if not gaps:
        return record
    met, passing = _met(record, manifest, device)
    illegal = list(_illegal(manifest, record, device))
    wrong = illegal or _wrong(gaps, met, passing, today or datetime.now(UTC).date(), whole=record.only is None)
    kept = [note for note in record.notes if not note.startswith(_SAID_BY_THE_RUN)]
    return dataclasses.replace(record, notes=(*kept, *wrong))


def _met(record: RunRecord, manifest: Manifest, device: Device) -> tuple[set[int], dict[int, str]]:
    """The gaps (by place in the file) that some case lies in, and for those that pass the item that shows it."""
    met: set[int] = set()
    passing: dict[int, str] = {}
    for result in record.results:
        if result.id.startswith(f"{CHECK}/"):
            places = _refusing(manifest, result.id, device)
            met |= set(places)
            if result.outcome is Outcome.UNDERCLAIM:
                for place in places:
                    passing.setdefault(place, result.id)
    return met, passing


def _refusing(manifest: Manifest, item: str, device: Device) -> list[int]:
    """The entries of the gap file that refuse the case of an item, counted from 1."""
    sources = [reason.source for reason in _reasons(manifest, item, device) if reason.code == "gap"]
    return [int(found[1]) for source in sources if (found := _SOURCE.search(source))]


def _illegal(manifest: Manifest, record: RunRecord, device: Device) -> Iterator[str]:
    """What the selector says of a file that it cannot read: it refuses every call then, so any item will do."""
    item = next((result.id for result in record.results if result.id.partition("/")[0] in CHECKED), None)
    for reason in () if item is None else _reasons(manifest, item, device):
        if reason.code == "load_error":
            yield f"{ERROR}{reason.message}"


def _reasons(manifest: Manifest, item: str, device: Device) -> tuple[Reason, ...]:
    """Why the selector refuses the case of an item; none where it does not."""
    request = request_of(parse_item(item)[1])
    policy = attn_backends.Policy(numerics=frozenset({"exact", manifest.numerics}))
    try:
        attn_backends.select(request, backend=manifest.name, policy=policy, device=device)
    except UnfitBackendError as error:
        candidate = error.decision.candidate(manifest.name) if error.decision else None
        return candidate.reasons if candidate else ()
    return ()


def _wrong(
    gaps: Mapping[int, Gap], met: set[int], passing: Mapping[int, str], today: date, *, whole: bool
) -> Iterator[str]:  # fmt: skip
    for place, gap in gaps.items():
        if place in passing:
            yield f"{ERROR}gap {gap.id} passes ({passing[place]}): delete its entry"
        elif place not in met and whole:
            yield f"{ERROR}gap {gap.id} matches no case: correct it, or delete its entry"
        if gap.expired(today):
            yield f"{ERROR}gap {gap.id} has expired ({gap.expires}): fix it, or look at it again"
