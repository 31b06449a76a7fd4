"""From a call's metadata to a bound kernel: the flat key, the cache of `Bound`s, and the decision on a miss.

Everything that runs a call goes through here: `attention()`, the compiled op, loaded kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from attn_backends.device import Device
from attn_backends.errors import LoadError, NoBackendError, UnknownBackendError
from attn_backends.host.checks import check_contents
from attn_backends.host.keys import extras_key, scalars_key, tensors_key
from attn_backends.host.launch import Bound, Output, bind_call, check_out, checks_contents
from attn_backends.host.reading import read_request
from attn_backends.registry.hooking import active_hooks
from attn_backends.registry.knobs import deciding_knobs
from attn_backends.registry.registry import default_registry
from attn_backends.selector.refusal import raise_unless_chosen
from attn_backends.selector.scope import open_scopes
from attn_backends.selector.select import changes, select

if TYPE_CHECKING:
    from attn_backends.host.arguments import Arguments
    from attn_backends.request import Request
    from attn_backends.selector.decision import Decision

bound_calls: dict[Any, Bound] = {}  # every call by everything it depends on
_MAX_BOUND = 16384
registry = default_registry()


def dispatch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Arguments, *, gradients: tuple[bool, ...] | None = None
) -> Output:
    """A call by its arguments, whatever they are.

    `gradients`: which of q, k, v, attn_mask, sinks will get one, for a caller that differentiates by itself; the
    decision is then the one of a differentiable call, and only the forward runs.
    """
    bound = find_bound(q, k, v, a, gradients)
    return bound(q, k, v, a) if gradients is None else bound.forward(q, k, v, a)


def find_bound(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Arguments, gradients: tuple[bool, ...] | None = None
) -> Bound:
    """The bound kernel of a call: from the cache, else decided and bound anew."""
    key = call_key(q, k, v, a, gradients)
    bound = bound_calls.get(key) if key is not None else None
    if bound is None:
        bound = _bind_anew(q, k, v, a, gradients)
        if key is not None:
            remember(bound_calls, key, bound)
    return bound


def call_key(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Arguments, gradients: tuple[bool, ...] | None
) -> Any:
    """Flat key of a call: the tensors' metadata, the arguments, and what may have changed since. None: no legal key."""
    try:
        extras = extras_key(a)
        key = (
            tensors_key(q, k, v, registry.alignment_matters), scalars_key(a), extras, gradients,
            open_scopes(), deciding_knobs(), registry.changes, changes(),
        )  # fmt: skip
        hash(key)
    except (AttributeError, RuntimeError, TypeError):
        return None  # something is no plain tensor, or not hashable: the slow path says what
    return key


def _bind_anew(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Arguments, gradients: tuple[bool, ...] | None
) -> Bound:
    """Decide and bind. A backend that fails to load, or went meanwhile, is left out, and the call decided again."""
    request, geometry = read_request(q, k, v, a, gradients)
    check_out(request, q, a, geometry)  # a bad call is refused as such, before any backend is looked at
    if checks_contents(q, a):
        check_contents(a, geometry)
    device = device_of(q.device)
    while True:
        decision = select(request, backend=a.backend, policy=a.policy, device=device)
        _raise_unless_chosen(decision, request)
        name = decision.backend or ""
        try:
            return bind_call(decision, registry.load(name), request, q, a, geometry)
        except LoadError as error:
            if decision.forced is not None:
                error.decision = decision
                raise
            registry.remember_failure(name, str(error))
        except UnknownBackendError:
            if decision.forced is not None:
                raise


def _raise_unless_chosen(decision: Decision, request: Request) -> None:
    """Raise the error of the cause if nothing was chosen; say so where gradients are what nobody has."""
    try:
        raise_unless_chosen(decision)
    except NoBackendError as error:
        stored = {request.q_format, request.k_format, request.v_format} != {"dense"}
        if request.needs_backward and (stored or request.page_size is not None):
            what = "quantised tensors" if stored else "a paged cache"
            hint = f"gradients: no backend has a backward over {what}; call under torch.no_grad(), or detach q"
            error.args = (f"{error}\n{hint}",)
        raise


def remember(calls: dict[Any, Bound], key: Any, bound: Bound) -> None:
    """Keep a bound call; the oldest half goes when there are too many."""
    if len(calls) >= _MAX_BOUND:
        for old in list(calls)[: _MAX_BOUND // 2]:
            calls.pop(old, None)
    calls[key] = bound


def device_of(device: torch.device) -> Device:
    """The facts of a tensor's device, after the device hooks had their word."""
    facts = Device.of(device.type, device.index)
    hooks = active_hooks()
    return facts if hooks is None else hooks.device(facts)
