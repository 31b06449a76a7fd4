"""From a call's metadata to a bound kernel: the flat key, the cache of `Bound`s, and the decision on a miss.

Everything that runs a call goes through here: `attention()`, the compiled op, loaded kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from attn_backends.device import Device
from attn_backends.errors import LoadError
from attn_backends.host.keys import NO_EXTRAS, extras_key
from attn_backends.host.launch import Bound, Output, bind_call
from attn_backends.host.reading import read_request
from attn_backends.registry.hooking import active_hooks
from attn_backends.registry.knobs import raw_knobs
from attn_backends.registry.registry import default_registry
from attn_backends.selector.refusal import raise_unless_chosen
from attn_backends.selector.scope import open_scopes
from attn_backends.selector.select import changes, select

if TYPE_CHECKING:
    from attn_backends.host.arguments import Arguments

bound_calls: dict[Any, Bound] = {}
_MAX_BOUND = 16384
_registry = default_registry()


def hot_key(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *scalars: Any) -> Any:
    """Flat key of a call: the tensors' metadata, the arguments, and what may have changed since. None: no legal key."""
    try:
        grad = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
        key = (
            q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype, q.device,
            k.device, v.device, (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15, grad, scalars,
            open_scopes(), raw_knobs(), _registry.changes, changes(),
        )  # fmt: skip
        hash(key)
    except (AttributeError, TypeError):
        return None  # something is no tensor, or not hashable: the slow path says what
    return key


def dispatch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Arguments, *, gradients: tuple[bool, ...] | None = None
) -> Output:
    """A call by its arguments, whatever they are: from the cache of bound kernels, else decided and bound.

    `gradients`: which of q, k, v, attn_mask, sinks will get one, for a caller that differentiates by itself; the
    decision is then the one of a differentiable call, and only the forward runs.
    """
    extras = extras_key(a)
    scalars = (
        a.layout, a.causal, a.causal_alignment, a.window_left, a.window_right, a.softmax_scale, a.softcap,
        a.max_seqlen_q, a.max_seqlen_k, a.kv_layout, a.dropout_p, a.return_lse, a.deterministic, a.batch_invariant,
        a.backend, a.policy, a.phase, a.attn_type, a.out_dtype, a.graph, a.validate, a.q_granularity, a.k_granularity,
        a.v_granularity, a.scale_block, a.nan_safe,
    )  # fmt: skip
    plain = extras == NO_EXTRAS and gradients is None
    key = hot_key(q, k, v, *scalars) if plain else hot_key(q, k, v, *scalars, extras, gradients)
    bound = bound_calls.get(key) if key is not None else None
    if bound is None:
        bound = find_bound(q, k, v, a, key, gradients)
    return bound(q, k, v, a) if gradients is None else bound.forward(q, k, v, a)


def find_bound(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: Arguments,
    key: Any = None,
    gradients: tuple[bool, ...] | None = None,
) -> Bound:
    """Decide and bind; remembered under `key`. A backend that fails to load is left out and the call decided again."""
    request, geometry = read_request(q, k, v, a, gradients)
    device = device_of(q.device)
    while True:
        decision = select(request, backend=a.backend, policy=a.policy, device=device)
        raise_unless_chosen(decision)
        name = decision.backend or ""
        try:
            loaded = _registry.load(name)
            bound = bind_call(decision, loaded, request, q, a, geometry)
            break
        except LoadError as error:
            if decision.forced is not None:
                error.decision = decision
                raise
            _registry.remember_failure(name, str(error))
    if key is not None:
        if len(bound_calls) >= _MAX_BOUND:
            for old in list(bound_calls)[: _MAX_BOUND // 2]:
                bound_calls.pop(old, None)
        bound_calls[key] = bound
    return bound


def device_of(device: torch.device) -> Device:
    """The facts of a tensor's device, after the device hooks had their word."""
    facts = Device.of(device.type, device.index)
    hooks = active_hooks()
    return facts if hooks is None else hooks.device(facts)
