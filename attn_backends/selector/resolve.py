"""One resolution: every candidate filtered, matched, checked and ranked, without looking at any cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attn_backends.box import Box, Miss, Values
from attn_backends.capability import TABLE, Row
from attn_backends.matching import MatchIndex, Verdict
from attn_backends.reason import Reason
from attn_backends.registry.certificates import architecture
from attn_backends.registry.discovery import Broken
from attn_backends.registry.hooking import active_hooks
from attn_backends.registry.registry import Registry, Snapshot
from attn_backends.selector.conversions import Called
from attn_backends.selector.decision import Candidate, Change, Decision, Forced, Relaxation
from attn_backends.selector.filters import Asked, forbidden_reference, quarantine_reasons, static_rejections
from attn_backends.selector.rank import Grounds, outranked_by, rank
from attn_backends.selector.times import CostModel, Measured, Measurements, measured_times, predicted_times

if TYPE_CHECKING:
    from attn_backends.registry.manifest import Manifest
    from attn_backends.request import Request
    from attn_backends.selector.buckets import Buckets

DOWNCASTS = {"float32": ("bfloat16", "float16"), "float64": ("float32", "bfloat16", "float16")}
_REMEMBERED = 4096  # refusals kept per snapshot
_UNMEASURED = (None, None, None)
_DTYPE_ROW = next(index for index, row in enumerate(TABLE) if row.axis == "dtype")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Everything one resolution depends on."""

    asked: Asked
    forced: Forced | None
    registry: Registry
    buckets: Buckets
    measurements: Measurements
    cost_model: CostModel
    values: Values  # the request on every axis
    key: tuple[Any, ...]  # the request in bucketed form


@dataclass(slots=True)
class _Fit:
    """An eligible backend and the dtype it would run in."""

    manifest: Manifest
    dtype: str | None


def resolve(question: Question) -> Decision:
    """Decide. Never raises for a request that merely nobody can serve."""
    asked = question.asked
    snapshot = asked.snapshot
    values = question.values
    fits: list[_Fit] = []
    rejected: list[Candidate] = []
    nearest: list[Relaxation] = []
    canonical: list[Request] = []
    static = static_rejections(asked, architecture(asked.device.kind, asked.device.arch))
    verdicts, lowered = _verdicts(question, values)
    for manifest, refused, verdict in zip(snapshot.manifests, static, verdicts, strict=True):
        against = refused or (_quarantined(manifest, asked) if asked.entries else None)
        if against is None and verdict.misses:
            against, relaxation = _outside(manifest, verdict, values, snapshot)
            nearest.append(relaxation)
        elif against is None:
            against = _unfit(question, manifest, canonical)
        if against is None:
            fits.append(_Fit(manifest, lowered.get(verdict)))
        else:
            rejected.append(against)
    return _decide(question, fits, rejected + [_broken(item) for item in snapshot.broken], nearest, canonical)


def _quarantined(manifest: Manifest, asked: Asked) -> Candidate | None:
    reasons = quarantine_reasons(manifest, asked)
    return Candidate.rejected(manifest, "quarantine", reasons) if reasons else None


def _unfit(question: Question, manifest: Manifest, canonical: list[Request]) -> Candidate | None:
    """The record of a backend whose boxes hold the request, where its own check or the policy is against it."""
    if manifest.offers("check"):
        reasons = question.registry.run_check(manifest, _canonical(question, canonical), question.asked.device)
        if reasons:
            return Candidate.rejected(manifest, "check", reasons)
    if question.asked.policy.forbid_reference:
        reasons = forbidden_reference(manifest, question.asked)
        if reasons:
            return Candidate.rejected(manifest, "policy", reasons)
    return None


def _verdicts(question: Question, values: Values) -> tuple[Sequence[Verdict], dict[Verdict, str]]:
    """(per backend, how it stands; of those that stand only in another dtype, in which)."""
    asked = question.asked
    index: MatchIndex = asked.snapshot.derived["index"]
    verdicts = index.match(values)
    dtypes = DOWNCASTS.get(asked.request.dtype) if asked.policy.allow_downcast else None
    if dtypes is None:
        return verdicts, {}
    best, lowered = list(verdicts), dict[Verdict, str]()
    for dtype in dtypes:
        for position, verdict in enumerate(index.match((*values[:_DTYPE_ROW], dtype, *values[_DTYPE_ROW + 1 :]))):
            if verdict.fits and not best[position].fits:
                best[position] = verdict
                lowered[verdict] = dtype
    return best, lowered


def _canonical(question: Question, made: list[Request]) -> Request:
    if not made:
        made.append(question.buckets.canonical(question.asked.request))
    return made[0]


def _decide(
    question: Question,
    fits: list[_Fit],
    rejected: list[Candidate],
    nearest: list[Relaxation],
    canonical: list[Request],
) -> Decision:
    asked, forced = question.asked, question.forced
    winner: _Fit | None = None
    source: str | None = None
    ordered: list[_Fit] = []
    measured: Mapping[str, Measured] = {}
    predicted: Mapping[str, float] = {}
    if fits:
        grounds, measured = _grounds(question, fits, canonical)
        predicted = grounds.predicted
        manifests, source = rank([fit.manifest for fit in fits], grounds)
        by_name = {fit.manifest.name: fit for fit in fits}
        ordered = [by_name[manifest.name] for manifest in manifests]
        winner = ordered[0]
    if forced is not None:
        winner = next((fit for fit in ordered if fit.manifest.name == forced.name), None)
        source = forced.source if winner else None
        ordered = sorted(ordered, key=lambda fit: fit is not winner)
    candidates = _standing(ordered, winner, source, asked, measured, predicted)
    return Decision(
        request=asked.request,
        backend=winner.manifest.name if winner else None,
        source=source,
        candidates=(*candidates, *rejected),
        nearest=tuple(nearest),
        environment=asked.environment,
        device=asked.device,
        policy=asked.policy,
        registry=asked.snapshot.digest,
        forced=forced,
        identity=(
            question.key, tuple([entry.id for entry in asked.entries]), question.measurements.token,
            tuple(predicted.items()),
        ),
        origin=question.registry,
        downcast=winner.dtype if winner else None,
    )  # fmt: skip


def _grounds(
    question: Question, fits: Sequence[_Fit], canonical: list[Request]
) -> tuple[Grounds, Mapping[str, Measured]]:
    """Times and hook order, and where the times come from; under batch_invariant only what cannot depend on the batch."""
    asked = question.asked
    if asked.request.batch_invariant:
        return Grounds(policy=asked.policy, measured={}, predicted={}), {}
    names = [fit.manifest.name for fit in fits]
    order: list[str] = []
    hooks = active_hooks()
    if asked.policy.rank_hooks and hooks is not None:
        order = hooks.rank(_canonical(question, canonical), names, asked.policy.rank_hooks)
    manifests = [fit.manifest for fit in fits]
    measured: Mapping[str, Measured] = {}
    predicted: Mapping[str, float] = {}
    if question.measurements.token != ():
        measured = measured_times(
            question.measurements, manifests, _canonical(question, canonical), asked.device, asked.environment
        )
    if question.cost_model.token is not None:
        predicted = predicted_times(question.cost_model, manifests, _canonical(question, canonical), asked.device)
    times = {name: one.ms for name, one in measured.items()}
    return Grounds(policy=asked.policy, hook_order=order, measured=times, predicted=predicted), measured


def _standing(
    ordered: list[_Fit],
    winner: _Fit | None,
    source: str | None,
    asked: Asked,
    measured: Mapping[str, Measured],
    predicted: Mapping[str, float],
) -> list[Candidate]:
    standing: list[Candidate] = []
    called = Called(asked.request, asked.device)
    for position, fit in enumerate(ordered, 1):
        manifest, won = fit.manifest, fit is winner
        name = manifest.name
        ms, at, by = measured.get(name, _UNMEASURED)
        cast = (f"downcast {asked.request.dtype} -> {fit.dtype}",) if fit.dtype else ()
        standing.append(
            Candidate(
                name, manifest.version, manifest.tier, manifest.numerics, "selected" if won else "outranked", "rank",
                () if won else _outranked(manifest, winner, source, asked.snapshot), position, predicted.get(name),
                ms, at or None, by, cast + called.by(manifest),
            )
        )  # fmt: skip
    return standing


def _outranked(manifest: Manifest, winner: _Fit | None, source: str | None, snapshot: Snapshot) -> tuple[Reason, ...]:
    """Why a backend that fits was not chosen; as many as there are pairs of backends are kept with the snapshot."""
    memo: dict[Any, tuple[Reason, ...]] = snapshot.derived.setdefault("outranked", {})
    key = (manifest, winner.manifest if winner else None, source)
    found = memo.get(key)
    if found is None:
        if winner is None:
            got, want, text = manifest.name, "the forced backend", "fits, but another was forced"
        else:
            got, want, text = outranked_by(manifest, winner.manifest, source or "priority")
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


def _outside(manifest: Manifest, verdict: Verdict, values: Values, snapshot: Snapshot) -> tuple[Candidate, Relaxation]:
    """A backend outside its boxes: its record and the nearest change. Both follow from box, misses and values alone."""
    memo: dict[Any, tuple[Candidate, Relaxation]] = snapshot.derived.setdefault("outside", {})
    key = (verdict, *[values[row] for row, _ in verdict.misses])  # the index gives equal verdicts as one object
    found = memo.get(key)
    if found is None:
        if len(memo) >= _REMEMBERED:
            memo.clear()
        reasons = tuple([verdict.box.reason(values, miss, snapshot.table) for miss in verdict.misses])
        changes = tuple([_change(verdict.box, values, miss, snapshot.table) for miss in verdict.misses])
        candidate = Candidate.rejected(manifest, "capability", reasons)
        found = memo[key] = (candidate, Relaxation(manifest.name, changes))
    return found


def _change(box: Box, values: Values, miss: Miss, table: Sequence[Row]) -> Change:
    row, got = table[miss[0]], values[miss[0]]
    part = None
    if row.parts:
        part, got = row.parts[miss[1]], got[miss[1]]
    return Change(row.axis, got, box.nearest(values, miss, table), part)
