"""One resolution: every candidate filtered, matched, checked and ranked, without looking at any cache.

Who fits and who is first is found out here; what is said of each is written when it is read (`records.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from attn_backends.box import Values
from attn_backends.capability import TABLE
from attn_backends.matching import MatchIndex, Verdict
from attn_backends.registry.certificates import architecture
from attn_backends.registry.hooking import active_hooks
from attn_backends.registry.manifest import Manifest
from attn_backends.registry.registry import Registry
from attn_backends.selector.decision import Candidate, Decision, Forced, Records
from attn_backends.selector.filters import Asked, forbidden_reference, quarantine_reasons
from attn_backends.selector.rank import Grounds, rank
from attn_backends.selector.records import Found, static_rejections
from attn_backends.selector.times import CostModel, Measured, Measurements, measured_times, predicted_times

if TYPE_CHECKING:
    from attn_backends.request import Request
    from attn_backends.selector.buckets import Buckets

DOWNCASTS = {"float32": ("bfloat16", "float16"), "float64": ("float32", "bfloat16", "float16")}
_DTYPE_ROW = next(index for index, row in enumerate(TABLE) if row.axis == "dtype")


class Question(NamedTuple):
    """Everything one resolution depends on."""

    asked: Asked
    forced: Forced | None
    registry: Registry
    buckets: Buckets
    measurements: Measurements
    cost_model: CostModel
    values: Values  # the request on every axis
    key: tuple[Any, ...]  # the request in bucketed form


def resolve(question: Question) -> Decision:
    """Decide. Never raises for a request that merely nobody can serve."""
    asked = question.asked
    refused = static_rejections(asked, architecture(asked.device.kind, asked.device.arch))
    if asked.entries:
        refused = _quarantined(refused, asked)
    verdicts, lowered = _verdicts(question)
    canonical: list[Request] = []
    fits: list[Manifest] = []
    unfit: dict[str, Candidate] = {}
    for manifest, before, verdict in zip(asked.snapshot.manifests, refused, verdicts, strict=True):
        if before is None and not verdict.misses:
            against = _unfit(question, manifest, canonical)
            if against is None:
                fits.append(manifest)
            else:
                unfit[manifest.name] = against
    ordered, source, measured, predicted = _ranked(question, fits, canonical)
    winner = ordered[0] if source is not None else None
    found = Found(
        asked, question.values, refused, verdicts, unfit, ordered, winner, source, lowered, measured, predicted
    )
    return Decision(
        request=asked.request,
        backend=winner.name if winner else None,
        source=source,
        records=Records(found.write),
        environment=asked.environment,
        device=asked.device,
        policy=asked.policy,
        registry=asked.snapshot.digest,
        forced=question.forced,
        identity=(
            question.key, tuple([entry.id for entry in asked.entries]), question.measurements.token,
            tuple(predicted.items()),
        ),
        origin=question.registry,
        downcast=lowered.get(winner.name) if winner and lowered else None,
    )  # fmt: skip


def _quarantined(refused: Sequence[Candidate | None], asked: Asked) -> list[Candidate | None]:
    """The records of the filters before the axes, quarantine and gaps added."""
    found: list[Candidate | None] = []
    for manifest, against in zip(asked.snapshot.manifests, refused, strict=True):
        reasons = () if against else quarantine_reasons(manifest, asked)
        found.append(Candidate.rejected(manifest, "quarantine", reasons) if reasons else against)
    return found


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


def _verdicts(question: Question) -> tuple[Sequence[Verdict], dict[str, str]]:
    """(per backend, how it stands; of those that stand only in another dtype, in which)."""
    asked, values = question.asked, question.values
    index: MatchIndex = asked.snapshot.derived["index"]
    verdicts = index.match(values)
    dtypes = DOWNCASTS.get(asked.request.dtype) if asked.policy.allow_downcast else None
    if dtypes is None:
        return verdicts, {}
    best, lowered = list(verdicts), dict[str, str]()
    for dtype in dtypes:
        for position, verdict in enumerate(index.match((*values[:_DTYPE_ROW], dtype, *values[_DTYPE_ROW + 1 :]))):
            if verdict.fits and not best[position].fits:
                best[position] = verdict
                lowered[asked.snapshot.manifests[position].name] = dtype
    return best, lowered


def _canonical(question: Question, made: list[Request]) -> Request:
    if not made:
        made.append(question.buckets.canonical(question.asked.request))
    return made[0]


Ranked = tuple[Sequence[Manifest], str | None, Mapping[str, Measured], Mapping[str, float]]


def _ranked(question: Question, fits: Sequence[Manifest], canonical: list[Request]) -> Ranked:
    """(best first, who decided it, measured times, predicted ones); a forced backend that fits stands first.

    Nobody decided where nothing fits, or the forced one does not.
    """
    forced = question.forced
    if not fits:
        return (), None, {}, {}
    grounds, measured = _grounds(question, fits, canonical)
    ordered, source = rank(fits, grounds)
    if forced is not None:
        ordered.sort(key=lambda manifest: manifest.name != forced.name)
        return ordered, forced.source if ordered[0].name == forced.name else None, measured, grounds.predicted
    return ordered, source, measured, grounds.predicted


def _grounds(
    question: Question, fits: Sequence[Manifest], canonical: list[Request]
) -> tuple[Grounds, Mapping[str, Measured]]:
    """Times and hook order, and where the times come from; under batch_invariant only what cannot depend on the batch."""
    asked = question.asked
    if asked.request.batch_invariant:
        return Grounds(asked.policy, {}, {}), {}
    order: list[str] = []
    measured: Mapping[str, Measured] = {}
    predicted: Mapping[str, float] = {}
    if asked.policy.rank_hooks and (hooks := active_hooks()) is not None:
        names = [manifest.name for manifest in fits]
        order = hooks.rank(_canonical(question, canonical), names, asked.policy.rank_hooks)
    if question.measurements.token != ():
        measured = measured_times(
            question.measurements, fits, _canonical(question, canonical), asked.device, asked.environment
        )
    if question.cost_model.token is not None:
        predicted = predicted_times(question.cost_model, fits, _canonical(question, canonical), asked.device)
    times = {name: one.ms for name, one in measured.items()} if measured else {}
    return Grounds(asked.policy, times, predicted, order), measured
