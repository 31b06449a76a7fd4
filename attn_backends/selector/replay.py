"""Deciding a recorded decision again, and saying what differs.

Only the registry may be another one (and the environment, where one is given): request, device, policy, choice and
times are those of the record, whatever scopes, knobs, measurements and models there are now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attn_backends.errors import UnknownBackendError
from attn_backends.registry.environment import Environment
from attn_backends.registry.knobs import NO_KNOBS
from attn_backends.registry.registry import default_registry
from attn_backends.selector.conditions import ANYWHERE
from attn_backends.selector.cost.model import ROOFLINE, comparable
from attn_backends.selector.decision import Decision, Replay
from attn_backends.selector.resolve import resolve
from attn_backends.selector.scope import Scope
from attn_backends.selector.select import question_of
from attn_backends.selector.times import NO_COST_MODEL, FixedTimes

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.registry.manifest import Manifest
    from attn_backends.registry.registry import Registry
    from attn_backends.request import Request


@dataclass(frozen=True, slots=True)
class Predicted:
    """A cost model that says what stands in a record."""

    token: tuple[tuple[str, float], ...]  # backend and milliseconds
    recorded: frozenset[str] = frozenset()  # every backend of the record; others are newcomers, predicted as of today

    def predict_together(self, manifests: Sequence[Manifest], request: Request, device: Device) -> Mapping[str, float]:
        """The recorded times, and today's for newcomers, where they can be compared with those."""
        newcomers = [manifest for manifest in manifests if manifest.name not in self.recorded]
        times = {**dict(self.token), **ROOFLINE.predict_together(newcomers, request, device)}
        found = {manifest.name: times[manifest.name] for manifest in manifests if manifest.name in times}
        timed = [manifest for manifest in manifests if manifest.name in found]
        return comparable(found, [*timed, *(one for one in newcomers if one.name not in found)])

    def predict(self, manifest: Manifest, request: Request, device: Device) -> float | None:
        """The recorded time, where there is one."""
        return dict(self.token).get(manifest.name)


def replay(old: Decision, *, registry: Registry | None, environment: Environment | None) -> Replay:
    """Decide `old.request` again on the same device and policy; every difference in words."""
    try:
        new = _decide_again(old, registry or default_registry(), environment or old.environment)
    except UnknownBackendError as error:
        return Replay(old, (f"backend {old.forced.name if old.forced else None!r} is gone: {error}",))
    return Replay(new, tuple(_differences(old, new)))


def _decide_again(old: Decision, registry: Registry, environment: Environment) -> Decision:
    forced = old.forced
    scopes = (Scope(forced.name, None, ANYWHERE),) if forced is not None and forced.source == "scope" else ()
    measured = {one.name: one.measured_ms for one in old.candidates if one.measured_ms is not None}
    predicted = tuple((one.name, one.predicted_ms) for one in old.candidates if one.predicted_ms is not None)
    question, _ = question_of(
        old.request, forced.name if forced is not None and forced.source == "explicit" else None, old.policy,
        old.device, environment, scopes, NO_KNOBS, registry.snapshot(), registry, FixedTimes.of(measured),
    )  # fmt: skip
    recorded = frozenset(one.name for one in old.candidates)
    return resolve(question._replace(cost_model=Predicted(predicted, recorded) if predicted else NO_COST_MODEL))


def _differences(old: Decision, new: Decision) -> list[str]:
    found = []
    if old.backend != new.backend:
        found.append(f"backend: {old.backend} -> {new.backend}")
    if old.source != new.source:
        found.append(f"source: {old.source} -> {new.source}")
    before = {candidate.name: candidate for candidate in old.candidates}
    after = {candidate.name: candidate for candidate in new.candidates}
    found += [f"{name}: gone" for name in before if name not in after]
    found += [f"{name}: new, {after[name].status}" for name in after if name not in before]
    for name in before.keys() & after.keys():
        was, now = _codes(before[name]), _codes(after[name])
        if was != now:
            found.append(f"{name}: {was} -> {now}")
        elif before[name].version != after[name].version:
            found.append(f"{name}: version {before[name].version} -> {after[name].version}")
    return sorted(found)


def _codes(candidate: object) -> str:
    reasons = getattr(candidate, "reasons", ())
    codes = sorted({reason.code for reason in reasons if reason.code != "outranked"})
    return ", ".join(codes) if codes else "fits"
