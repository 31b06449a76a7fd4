"""`use`: a scope inside which a backend is chosen, or a policy holds. A ContextVar: threads and tasks do not leak."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attn_backends.errors import PolicyError
from attn_backends.selector.conditions import Conditions, parse_conditions
from attn_backends.selector.policy import Policy

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.request import Request


@dataclass(frozen=True, slots=True)
class Scope:
    """One open scope: a backend, a policy or both, where the conditions hold."""

    backend: str | None
    policy: Policy | None
    when: Conditions


_open: ContextVar[tuple[Scope, ...]] = ContextVar("attn_backends_scopes", default=())


@contextmanager
def use(backend: str | None = None, *, policy: Policy | None = None, **conditions: Any) -> Iterator[None]:
    """Inside the scope, choose `backend` for every call that meets the conditions (axes such as `phase="decode"`).

    The innermost matching scope counts; a call's own `backend=` beats it. A chosen backend that does not fit raises
    UnfitBackendError at the call. A scope whose conditions name the batch ranks no batch-invariant call. Raises
    PolicyError for an unknown condition, and for anything but a name and a `Policy`.
    """
    if backend is None and policy is None:
        raise PolicyError("use: name a backend, a policy or both")
    if not isinstance(backend, str | None):
        raise PolicyError(f"use: got backend {backend!r}; allowed: the name of a backend")
    if not isinstance(policy, Policy | None):
        raise PolicyError(f"use: got policy {policy!r}; allowed: an attn_backends.Policy")
    when = parse_conditions(conditions, lambda text: PolicyError(f"use: {text}"))
    token = _open.set((*_open.get(), Scope(backend, policy, when)))
    try:
        yield
    finally:
        _open.reset(token)


open_scopes = _open.get  # the scopes of this thread or task, outermost first


def scoped_backend(scopes: tuple[Scope, ...], request: Request, device: Device) -> str | None:
    """The backend that the innermost matching scope names."""
    for scope in reversed(scopes):
        if scope.backend is not None and scope.when.hold(request, device) and not _by_batch(scope, request):
            return scope.backend
    return None


def scoped_policy(scopes: tuple[Scope, ...], base: Policy | None, request: Request, device: Device) -> Policy | None:
    """The call's policy laid over the policies of the matching scopes, outermost first."""
    merged: Policy | None = None
    for policy in [_policy(s, request) for s in scopes if s.policy is not None and s.when.hold(request, device)] + [
        base
    ]:
        if policy is not None:
            merged = policy if merged is None else merged.overlaid(_given(policy))
    return merged


def _policy(scope: Scope, request: Request) -> Policy | None:
    return scope.policy.unranked() if scope.policy is not None and _by_batch(scope, request) else scope.policy


def _by_batch(scope: Scope, request: Request) -> bool:
    """Whether the scope ranks by the batch a request that must not depend on it."""
    return request.batch_invariant and scope.when.of_the_batch


def _given(policy: Policy) -> dict[str, Any]:
    """The fields of a policy that are not at their default."""
    default = Policy()
    fields = ("only", "block", "prefer", "pin", "numerics", "trust", "rank_hooks", "rules",
              "allow_downcast", "allow_quarantined", "forbid_reference")  # fmt: skip
    return {name: getattr(policy, name) for name in fields if getattr(policy, name) != getattr(default, name)}
