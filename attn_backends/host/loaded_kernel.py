"""`LoadedKernel`: what `decision.load()` returns, a chosen kernel for hot loops with no dispatch left in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attn_backends.device import Device
from attn_backends.host.arguments import NAMES, arguments
from attn_backends.host.keys import KEYED_BY_FACTS, extras_key, tensors_key
from attn_backends.host.launch import Bound, Output, bind_call
from attn_backends.host.reading import read_request
from attn_backends.registry.registry import default_registry
from attn_backends.selector.select import select

if TYPE_CHECKING:
    import torch

    from attn_backends.host.arguments import Arguments
    from attn_backends.registry.registry import Registry
    from attn_backends.selector.decision import Decision

_FROM_REQUEST = tuple(
    name
    for name in NAMES
    if name in {
        "layout", "causal", "causal_alignment", "window_left", "window_right", "softmax_scale", "softcap", "dropout_p",
        "return_lse", "deterministic", "batch_invariant", "nan_safe", "phase", "attn_type", "graph", "scale_block",
    }
)  # fmt: skip


def bind(decision: Decision) -> LoadedKernel:
    """The chosen kernel of a decision as a callable. Raises LoadError where it does not import."""
    return LoadedKernel(decision, decision.origin or default_registry())


class LoadedKernel:
    """Call it as `fn(q, k, v, **tensors)`; the scalar arguments are those of the decision's request.

    New shapes are checked once against the backend's declaration (UnfitBackendError); shapes seen before run straight.
    """

    def __init__(self, decision: Decision, registry: Registry) -> None:
        self.decision = decision
        self._registry = registry
        self._loaded = registry.load(decision.backend or "")
        request = decision.request
        self._scalars = {name: getattr(request, name) for name in _FROM_REQUEST}
        if request.kv_layout is not None:
            self._scalars["kv_layout"] = request.kv_layout
        if request.out_dtype != "same":
            self._scalars["out_dtype"] = request.out_dtype
        for name in ("q_granularity", "k_granularity", "v_granularity"):
            if getattr(request, name) != "none":
                self._scalars[name] = getattr(request, name)
        self._bound: dict[Any, Bound] = {}

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **tensors: Any) -> Output:
        """Run the kernel; `tensors` are further arguments of `attention()`. Raises RequestError for any other name."""
        a = arguments({**self._scalars, **tensors})
        try:
            key = (
                tensors_key(q, k, v, self._registry.alignment_matters), extras_key(a),
                tuple([(name, type(x), x) for name, x in tensors.items() if name not in KEYED_BY_FACTS]),
            )  # fmt: skip
            bound = self._bound.get(key)
        except (AttributeError, RuntimeError, TypeError):
            return self._bind(q, k, v, a)(q, k, v, a)  # something is no plain tensor: this says what
        if bound is None:
            bound = self._bound[key] = self._bind(q, k, v, a)
        if bound.simple:
            return bound.fast(q, k, v)
        return bound(q, k, v, a)

    def _bind(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Arguments) -> Bound:
        request, geometry = read_request(q, k, v, a)
        decision = select(
            request, backend=self.decision.backend, policy=self.decision.policy,
            device=Device.of(q.device.type, q.device.index), registry=self._registry,
        )  # fmt: skip
        return bind_call(decision, self._loaded, request, q, a, geometry)
