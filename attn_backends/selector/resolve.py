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
from attn_backends.selector.filters import Asked, forbidden_reference, quarantine_reasons, static_refusals
from attn_backends.selector.rank import Grounds, outranked_by, rank
from attn_backends.selector.times import CostModel, Measured, Measurements, measured_times, predicted_times

if TYPE_CHECKING:
    from attn_backends.registry.manifest import Manifest
    from attn_backends.request import Request
    from attn_backends.selector.buckets import Buckets

DOWNCASTS = {"float32": ("bfloat16", "float16"), "float64": ("float32", "bfloat16", "float16")}
_REMEMBERED = 4096  # refusals kept per snapshot
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
    refusals = static_refusals(asked, architecture(asked.device.kind, asked.device.arch))
    for manifest, refusal, options in zip(snapshot.manifests, refusals, _options(question, values), strict=True):
        outcome = refusal or _stage("quarantine", quarantine_reasons(manifest, asked))
        if outcome is None:
            dtype, verdict = options
            if verdict.misses:
                candidate, relaxation = _outside(manifest, verdict, values, snapshot)
                rejected.append(candidate)
                nearest.append(relaxation)
                continue
            outcome = _stage("check", _checked(question, manifest, canonical)) or _stage(
                "policy", forbidden_reference(manifest, asked)
            )
            if outcome is None:
                fits.append(_Fit(manifest, dtype))
                continue
        rejected.append(_candidate(manifest, "rejected", *outcome))
    return _decide(question, fits, rejected + [_broken(item) for item in snapshot.broken], nearest, canonical)


def _stage(stage: str, reasons: tuple[Reason, ...]) -> tuple[str, tuple[Reason, ...]] | None:
    return (stage, reasons) if reasons else None


def _options(question: Question, values: Values) -> list[tuple[str | None, Verdict]]:
    """Per backend: the dtype it would run in (None = the request's) and how it stands."""
    asked = question.asked
    index: MatchIndex = asked.snapshot.derived["index"]
    options: list[tuple[str | None, Verdict]] = [(None, verdict) for verdict in index.match(values)]
    if asked.policy.allow_downcast:
        for dtype in DOWNCASTS.get(asked.request.dtype, ()):
            lowered = (*values[:_DTYPE_ROW], dtype, *values[_DTYPE_ROW + 1 :])
            for position, verdict in enumerate(index.match(lowered)):
                if verdict.fits and not options[position][1].fits:
                    options[position] = (dtype, verdict)
    return options


def _canonical(question: Question, made: list[Request]) -> Request:
    if not made:
        made.append(question.buckets.canonical(question.asked.request))
    return made[0]


def _checked(question: Question, manifest: Manifest, canonical: list[Request]) -> tuple[Reason, ...]:
    if not manifest.offers("check"):
        return ()
    return question.registry.run_check(manifest, _canonical(question, canonical), question.asked.device)


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
        name = fit.manifest.name
        reasons: tuple[Reason, ...] = ()
        if fit is not winner and winner is not None:
            got, want, text = outranked_by(fit.manifest, winner.manifest, source or "priority")
            reasons = (Reason("outranked", "outranked", got, want, text, "ranking"),)
        elif winner is None:
            reasons = (
                Reason("outranked", "outranked", name, "the forced backend", "fits, but another was forced", "ranking"),
            )
        cast = (f"downcast {asked.request.dtype} -> {fit.dtype}",) if fit.dtype else ()
        standing.append(
            _candidate(
                fit.manifest, "selected" if fit is winner else "outranked", "rank", reasons,
                rank=position, predicted_ms=predicted.get(name), **_measured_fields(measured.get(name)),
                conversions=cast + called.by(fit.manifest),
            )
        )  # fmt: skip
    return standing


def _measured_fields(found: Measured | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {"measured_ms": found.ms, "measured_at": found.at or None, "measured_by": found.by}


def _candidate(manifest: Manifest, status: str, stage: str, reasons: tuple[Reason, ...], **more: Any) -> Candidate:
    return Candidate(
        name=manifest.name, version=manifest.version, tier=manifest.tier, numerics=manifest.numerics,
        status=status, stage=stage, reasons=reasons, **more,
    )  # fmt: skip


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
    key = (verdict.box, *[(miss, values[miss[0]]) for miss in verdict.misses])
    found = memo.get(key)
    if found is None:
        if len(memo) >= _REMEMBERED:
            memo.clear()
        reasons = tuple([verdict.box.reason(values, miss, snapshot.table) for miss in verdict.misses])
        changes = tuple([_change(verdict.box, values, miss, snapshot.table) for miss in verdict.misses])
        candidate = _candidate(manifest, "rejected", "capability", reasons)
        found = memo[key] = (candidate, Relaxation(manifest.name, changes))
    return found


def _change(box: Box, values: Values, miss: Miss, table: Sequence[Row]) -> Change:
    row, got = table[miss[0]], values[miss[0]]
    part = None
    if row.parts:
        part, got = row.parts[miss[1]], got[miss[1]]
    return Change(row.axis, got, box.nearest(values, miss, table), part)
