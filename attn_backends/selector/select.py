"""`select`: the one question, answered through the cache.

The answer depends on the request, the registry's snapshot, the effective policy (call, scopes, knobs), the device, the
environment and the measurements, and on nothing else. No kernel is loaded, no torch imported.
"""

from __future__ import annotations

import threading
from typing import Any

from attn_backends.box import axis_values
from attn_backends.device import Device
from attn_backends.errors import PolicyError, RequestError
from attn_backends.matching import MatchIndex
from attn_backends.registry.certificates import read_certificates
from attn_backends.registry.environment import Environment
from attn_backends.registry.hooking import active_hooks, hook_changes
from attn_backends.registry.knobs import deciding_knobs, parse_knobs, raw_knobs, warn_of_unknown_knobs
from attn_backends.registry.registry import Registry, Snapshot, default_registry
from attn_backends.request import Request
from attn_backends.selector.announce import announce
from attn_backends.selector.buckets import Buckets, declared_lengths
from attn_backends.selector.cache import CacheInfo, DecisionCache
from attn_backends.selector.cost.model import ROOFLINE
from attn_backends.selector.decision import Decision, Forced
from attn_backends.selector.filters import Asked
from attn_backends.selector.policy import Policy, effective_policy
from attn_backends.selector.quarantine import Entry, readable_entries
from attn_backends.selector.refusal import raise_if_forced_unfit, raise_if_reference_forbidden
from attn_backends.selector.resolve import Question, resolve
from attn_backends.selector.scope import Scope, open_scopes, scoped_backend, scoped_policy
from attn_backends.selector.tile_edges import batch_edges, tile_edges
from attn_backends.selector.times import CostModel, FixedTimes, Measurements
from attn_backends.selector.unknown_names import warn_of_unknown_names

_EVERYTHING_MET = Environment.pretend()
_cache = DecisionCache()
_lock = threading.Lock()
_UNREAD: Measurements = FixedTimes((("unread", 0.0),))  # stands for this machine's times until somebody needs them
_measurements: Measurements = _UNREAD
_cost_model: CostModel = ROOFLINE
_of_the_machine = True  # whether the times are this machine's own, rather than given by `use_measurements`
_changes = 0


def select(
    request: Request,
    *,
    backend: str | None = None,
    policy: Policy | None = None,
    device: Device | str | None = None,
    environment: Environment | None = None,
    measurements: Measurements | None = None,
    registry: Registry | None = None,
) -> Decision:
    """Choose the backend for a request, and say why not the others.

    `device` is a `Device`, a name for `Device.pretend`, or None for this machine's; a pretended device brings an
    environment in which every requirement is met. Nothing fits: the Decision has `backend=None`. Raises
    UnfitBackendError if `backend=` (or a scope, or a pin) names one that cannot serve, UnknownBackendError for a name
    nobody has, ReferenceForbiddenError where only a forbidden reference fits.
    """
    knobs = deciding_knobs()
    scopes = open_scopes()
    snapshot = (registry or default_registry()).snapshot()
    times = _times() if measurements is None else measurements
    try:
        exact = (
            request, backend, policy, device, environment, scopes, knobs, snapshot, times.token, _cost_model.token,
            hook_changes(),
        )  # fmt: skip
        decision = _cache.get(exact)
    except (AttributeError, TypeError):  # something is not hashable, or no store of times
        _check_kinds(request, backend, policy, device, environment, times)
        raise
    if decision is None:
        decision = _select_anew(exact, registry or default_registry(), times)
    if decision.backend is None:
        raise_if_forced_unfit(decision)
        raise_if_reference_forbidden(decision)
    return decision


def cache_info() -> CacheInfo:
    """How many decisions were made anew, how many came from the cache, how many it holds."""
    return _cache.info()


def clear_cache() -> None:
    """Forget every decision, and look at this machine's packages, certificates and measured times again."""
    global _measurements
    default_registry().refresh()
    if _of_the_machine:
        _measurements = _UNREAD
    _forget()


def changes() -> tuple[Any, ...]:
    """Differs when decisions have become stale, by registrations of the default registry apart; for hot keys."""
    times = (
        _measurements if _measurements is not _UNREAD else _read_measurements()
    )  # no call more: the hot path is here
    return (_changes, times.token, _cost_model.token)


def _forget() -> None:
    global _changes
    _changes += 1
    _cache.clear()


def use_measurements(measurements: Measurements | None) -> None:
    """Rank by these times from now on; None goes back to those of this machine, `NO_TIMES` uses none."""
    global _measurements, _of_the_machine
    _measurements = _UNREAD if measurements is None else measurements
    _of_the_machine = measurements is None
    _forget()


def _times() -> Measurements:
    """What ranks now; this machine's own times are read when they are first asked for."""
    return _measurements if _measurements is not _UNREAD else _read_measurements()


def _read_measurements() -> Measurements:
    global _measurements
    from attn_backends.selector.measured.standing import machine_times

    with _lock:
        if _measurements is _UNREAD:
            _measurements = machine_times()
        return _measurements


def use_cost_model(model: CostModel | None) -> None:
    """Rank by this model from now on; None goes back to the roofline, `NO_COST_MODEL` leaves it to priorities."""
    global _cost_model
    _cost_model = ROOFLINE if model is None else model
    _forget()


def _select_anew(exact: tuple[Any, ...], registry: Registry, times: Measurements) -> Decision:
    request, backend, policy, device, environment, scopes, _, snapshot, *_ = exact
    knobs = raw_knobs()
    _check_kinds(request, backend, policy, device, environment, times)
    warn_of_unknown_knobs()
    question, bucketed = question_of(
        request, backend, policy, device, environment, scopes, knobs, snapshot, registry, times
    )
    warn_of_unknown_names(question.asked.policy, snapshot)
    decision, fresh = _cache.resolve(exact, bucketed, lambda: resolve(question))
    if fresh:
        announce(decision, parse_knobs(knobs))
    return decision


def _check_kinds(
    request: object, backend: object, policy: object, device: object, environment: object, times: object
) -> None:
    """Raise RequestError, or PolicyError, for an argument of another kind than it says."""
    if not isinstance(request, Request):
        raise RequestError("request", type(request).__name__, "an attn_backends.Request")
    if not isinstance(backend, str | None):
        raise RequestError("backend", backend, "none or the name of a backend")
    if not isinstance(policy, Policy | None):
        raise PolicyError(f"policy: got {type(policy).__name__}; allowed: none or an attn_backends.Policy")
    if not isinstance(device, Device | str | None):
        raise RequestError("device", type(device).__name__, "none, a name, or an attn_backends.Device")
    if not isinstance(environment, Environment | None):
        raise RequestError("environment", type(environment).__name__, "none or an attn_backends.Environment")
    if not hasattr(times, "token") or not callable(getattr(times, "times", None)):
        raise RequestError("measurements", type(times).__name__, "none or a store of times, such as FixedTimes")


def question_of(
    request: Request,
    backend: str | None,
    policy: Policy | None,
    device: Device | str | None,
    environment: Environment | None,
    scopes: tuple[Scope, ...],
    knobs: tuple[bytes | str | None, ...],
    snapshot: Snapshot,
    registry: Registry,
    times: Measurements,
) -> tuple[Question, tuple[Any, ...]]:
    """The question in full, and its bucketed key."""
    here = as_device(device)
    facts = environment or (_EVERYTHING_MET if here.pretended else _environment_here(snapshot))
    whole = effective_policy(scoped_policy(scopes, policy, request, here), parse_knobs(knobs))
    effective = whole.for_request(request, here)
    scoped = scoped_backend(scopes, request, here)
    forced = _forced(backend, effective.pin, scoped)
    if forced is not None:
        snapshot.get(forced.name)
    entries = tuple([entry for entry in _derive(snapshot) if entry.when.hold(request, here)])
    buckets: Buckets = snapshot.derived["buckets"]
    named = effective.named() | ({forced.name} if forced else frozenset())
    asked = Asked(request, here, effective, facts, snapshot, entries, forced.name if forced else None, named)
    values = axis_values(request, here, snapshot.table)
    bucketed = buckets.key(request, values)
    question = Question(asked, forced, registry, buckets, times, _cost_model, values, bucketed)
    key = (
        bucketed, snapshot, effective, here, facts, forced, times.token, _cost_model.token,
        tuple([entry.id for entry in entries]), hook_changes() if effective.rank_hooks else 0,
    )  # fmt: skip
    return question, key


def _forced(backend: str | None, pin: str | None, scoped: str | None) -> Forced | None:
    if backend is not None:
        return Forced(name=backend, source="explicit")
    if pin is not None:
        return Forced(name=pin, source="explicit")
    return Forced(name=scoped, source="scope") if scoped is not None else None


def as_device(device: Device | str | None) -> Device:
    """A `Device` from what `select` takes; None is this machine's, after the device hooks had their word."""
    if device is None:
        hooks = active_hooks()
        return Device.current() if hooks is None else hooks.device(Device.current())
    return Device.pretend(device) if isinstance(device, str) else device


def _environment_here(snapshot: Snapshot) -> Environment:
    found: Environment | None = snapshot.derived.get("environment")
    if found is None:
        packages = {requirement.name for manifest in snapshot.manifests for requirement in manifest.requires}
        found = Environment.current(packages, read_certificates())
        snapshot.derived["environment"] = found
    return found


def _derive(snapshot: Snapshot) -> tuple[Entry, ...]:
    """What selection needs of a snapshot, computed once: index, bucket edges, and (returned) the quarantine entries."""
    entries: tuple[Entry, ...] | None = snapshot.derived.get("entries")
    if entries is None:
        entries, snapshot.derived["unreadable_gaps"] = readable_entries(snapshot.manifests)
        snapshot.derived["index"] = MatchIndex([manifest.boxes for manifest in snapshot.manifests], snapshot.table)
        boxes = [box for manifest in snapshot.manifests for box in manifest.boxes]
        snapshot.derived["buckets"] = Buckets(
            declared_lengths(boxes, snapshot.table),
            snapshot.table,
            cuts={"seq_q": tile_edges(snapshot.manifests), "batch": batch_edges(snapshot.manifests)},
        )
        snapshot.derived["entries"] = entries
    return entries
