"""Deciding a recorded decision again, and saying what differs."""

from __future__ import annotations

from contextlib import nullcontext
from contextvars import Context
from typing import TYPE_CHECKING

from attn_backends.errors import AttnBackendsError
from attn_backends.registry.environment import Environment
from attn_backends.selector.decision import Decision, Replay
from attn_backends.selector.scope import use
from attn_backends.selector.select import select

if TYPE_CHECKING:
    from attn_backends.registry.registry import Registry


def replay(old: Decision, *, registry: Registry | None, environment: Environment | None) -> Replay:
    """Decide `old.request` again on the same device and policy; every difference in words."""
    # In an empty context: scopes that are open now are no part of what was recorded.
    return Context().run(_replay, old, registry, environment)


def _replay(old: Decision, registry: Registry | None, environment: Environment | None) -> Replay:
    try:
        new = _decide_again(old, registry, environment or old.environment)
    except AttnBackendsError as error:
        if error.decision is None:
            return Replay(old, (f"backend {old.forced.name if old.forced else None!r} is gone: {error}",))
        new = error.decision
    return Replay(new, tuple(_differences(old, new)))


def _decide_again(old: Decision, registry: Registry | None, environment: Environment) -> Decision:
    forced = old.forced
    scoped = use(forced.name) if forced is not None and forced.source == "scope" else nullcontext()
    with scoped:
        return select(
            old.request, backend=forced.name if forced is not None and forced.source == "explicit" else None,
            policy=old.policy, device=old.device, environment=environment, registry=registry,
        )  # fmt: skip


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
