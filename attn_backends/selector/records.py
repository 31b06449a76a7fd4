"""The records of one resolution: how every backend stands and why, and the nearest changes.

A resolution only finds out who fits and who is first; most decisions are made to be carried out, and nobody reads the rest.
So the records are written from what was found when they are first read (`Decision.candidates`, `nearest`, `explain`). They
follow from it alone: whoever reads, and whenever, reads the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from attn_backends.quantization import AXES, STORED_AS, descale_hint
from attn_backends.reason import Reason, show
from attn_backends.selector.conversions import Called
from attn_backends.selector.decision import Candidate, Change, Relaxation, Written
from attn_backends.selector.filters import static_refusals
from attn_backends.selector.rank import outranked_by

if TYPE_CHECKING:
    from attn_backends.box import Box, Miss, Values
    from attn_backends.capability import Row
    from attn_backends.matching import Verdict
    from attn_backends.registry.discovery import Broken
    from attn_backends.registry.manifest import Manifest
    from attn_backends.registry.registry import Snapshot
    from attn_backends.selector.filters import Asked
    from attn_backends.selector.times import Measured

_REMEMBERED = 4096  # refusals kept per snapshot
_REMEMBERED_STATIC = 64  # (policy, environment, forced, named, architecture) combinations kept per snapshot
_UNMEASURED = (None, None, None)


class Found(NamedTuple):
    """What a resolution found out: all that the records say follows from it."""

    asked: Asked
    values: Values  # the request on every axis
    refused: Sequence[Candidate | None]  # per backend: by a filter before the axes
    verdicts: Sequence[Verdict]  # per backend
    unfit: Mapping[str, Candidate]  # inside a box, refused behind the axes
    ordered: Sequence[Manifest]  # those that fit, best first
    winner: Manifest | None
    source: str | None
    lowered: Mapping[str, str]  # of those that fit in another dtype alone, in which
    measured: Mapping[str, Measured]
    predicted: Mapping[str, float]

    def write(self) -> Written:
        """Every backend's record, best first, and what would make the refused ones fit."""
        snapshot = self.asked.snapshot
        rejected: list[Candidate] = []
        nearest: list[Relaxation] = []
        hint = descale_hint(self.asked.request)
        for manifest, refused, verdict in zip(snapshot.manifests, self.refused, self.verdicts, strict=True):
            against = refused or self.unfit.get(manifest.name)
            if against is None and verdict.misses:
                against, relaxation = _outside(manifest, verdict, self.values, snapshot, hint)
                nearest.append(relaxation)
            if against is not None:
                rejected.append(against)
        rejected += [_broken(item) for item in snapshot.broken]
        return Written((*_standing(self), *rejected), tuple(nearest))


def static_rejections(asked: Asked, arch: str | None) -> list[Candidate | None]:
    """The records of `static_refusals`, kept with the snapshot."""
    memo: dict[Any, list[Candidate | None]] = asked.snapshot.derived.setdefault("static_rejections", {})
    key = (asked.policy, asked.environment, asked.forced, asked.named, arch)
    found = memo.get(key)
    if found is None:
        refusals = zip(asked.snapshot.manifests, static_refusals(asked, arch), strict=True)
        found = [None if refusal is None else Candidate.rejected(one, *refusal) for one, refusal in refusals]
        if len(memo) >= _REMEMBERED_STATIC:
            memo.clear()
        memo[key] = found
    return found


def _standing(found: Found) -> list[Candidate]:
    """Those that fit."""
    asked, winner = found.asked, found.winner
    called = Called(asked.request, asked.device)
    standing: list[Candidate] = []
    for position, manifest in enumerate(found.ordered, 1):
        name, won = manifest.name, manifest is winner
        ms, at, by = found.measured.get(name, _UNMEASURED)
        dtype = found.lowered.get(name)
        cast = () if dtype is None else (f"downcast {asked.request.dtype} -> {dtype}",)
        standing.append(
            Candidate(
                name, manifest.version, manifest.tier, manifest.numerics, "selected" if won else "outranked", "rank",
                () if won else _outranked(manifest, winner, found.source, asked.snapshot), position,
                found.predicted.get(name), ms, at or None, by, cast + called.by(manifest),
            )
        )  # fmt: skip
    return standing


def _outranked(
    manifest: Manifest, winner: Manifest | None, source: str | None, snapshot: Snapshot
) -> tuple[Reason, ...]:
    """Why a backend that fits was not chosen; as many as there are pairs of backends are kept with the snapshot."""
    memo: dict[Any, tuple[Reason, ...]] = snapshot.derived.setdefault("outranked", {})
    key = (manifest, winner, source)
    found = memo.get(key)
    if found is None:
        if winner is None:
            got, want, text = manifest.name, "the forced backend", "fits, but another was forced"
        else:
            got, want, text = outranked_by(manifest, winner, source or "priority")
        found = memo[key] = (Reason("outranked", "outranked", got, want, text, "ranking"),)
    return found


def _broken(item: Broken) -> Candidate:
    reason = Reason("load_error", "load_error", "a broken manifest", "a legal manifest", item.error, item.label)
    return Candidate(
        name=item.name,
        version="",
        tier="standard",
        numerics="exact",
        status="rejected",
        stage="load",
        reasons=(reason,),
    )


def _outside(
    manifest: Manifest, verdict: Verdict, values: Values, snapshot: Snapshot, hint: str | None
) -> tuple[Candidate, Relaxation]:
    """A backend outside its boxes: its record and the nearest change. Both follow from box, misses and values alone.

    hint: what the request lacks for its dtype and formats to mean something; said where they are refused.
    """
    memo: dict[Any, tuple[Candidate, Relaxation]] = snapshot.derived.setdefault("outside", {})
    key = (verdict, hint, *[values[row] for row, _ in verdict.misses])  # the index gives equal verdicts as one object
    found = memo.get(key)
    if found is None:
        if len(memo) >= _REMEMBERED:
            memo.clear()
        reasons = tuple([verdict.box.reason(values, miss, snapshot.table) for miss in verdict.misses])
        if hint is not None:
            reasons = tuple([_hinted(reason, hint) for reason in reasons])
        changes = tuple([_change(verdict.box, values, miss, snapshot.table) for miss in verdict.misses])
        candidate = Candidate.rejected(manifest, "capability", reasons)
        found = memo[key] = (candidate, Relaxation(manifest.name, changes))
    return found


def _hinted(reason: Reason, hint: str) -> Reason:
    """A reason about a quantised tensor without a descale says so; the dtype itself may be a legal one."""
    if reason.axis not in AXES:
        return reason
    got = f"got {show(reason.got)}"
    codes = reason.axis == "dtype" and reason.got in STORED_AS
    message = reason.message.replace(got, f"{got} without a descale", 1) if codes else reason.message
    return replace(reason, message=message, hint=reason.hint or hint)


def _change(box: Box, values: Values, miss: Miss, table: Sequence[Row]) -> Change:
    row, got = table[miss[0]], values[miss[0]]
    part = None
    if row.parts:
        part, got = row.parts[miss[1]], got[miss[1]]
    return Change(row.axis, got, box.nearest(values, miss, table), part)
