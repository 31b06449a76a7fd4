"""`attention()`: tensors -> Request -> Decision -> kernel.

The hot path makes a flat key from the tensors' metadata and the arguments, looks up a `Bound` and calls it; a Request
is built on a miss only. Compiled code goes through the custom op (`integrations/compiled.py`), which decides the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from attn_backends.device import Device
from attn_backends.errors import LoadError
from attn_backends.host.arguments import Arguments, arguments
from attn_backends.host.keys import NO_EXTRAS, extras_key
from attn_backends.host.launch import Bound, Output, bind_call
from attn_backends.host.loaded_kernel import LoadedKernel
from attn_backends.host.reading import read_request
from attn_backends.registry.hooking import active_hooks
from attn_backends.registry.knobs import raw_knobs
from attn_backends.registry.registry import default_registry
from attn_backends.selector.refusal import raise_unless_chosen
from attn_backends.selector.scope import open_scopes
from attn_backends.selector.select import changes, select

if TYPE_CHECKING:
    from attn_backends.block_mask import BlockMask
    from attn_backends.request import Request
    from attn_backends.selector.decision import Decision
    from attn_backends.selector.policy import Policy

_bound: dict[Any, Bound] = {}
_MAX_BOUND = 16384
_registry = default_registry()


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    layout: str = "bshd",
    causal: bool = False,
    causal_alignment: str = "bottom_right",
    window_left: int = -1,
    window_right: int = -1,
    softmax_scale: float | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    attn_mask: torch.Tensor | None = None,
    block_mask: BlockMask | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seq_lens: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    kv_layout: str = "NHD",
    q_descale: torch.Tensor | float | None = None,
    k_descale: torch.Tensor | float | None = None,
    v_descale: torch.Tensor | float | None = None,
    dropout_p: float = 0.0,
    return_lse: bool = False,
    deterministic: bool = False,
    batch_invariant: bool = False,
    out: torch.Tensor | None = None,
    backend: str | None = None,
    policy: Policy | None = None,
    phase: str | None = None,
    attn_type: str = "decoder",
    out_dtype: torch.dtype | str | None = None,
    graph: str | None = None,
    validate: bool = False,
    dropout_seed: int | None = None,
    q_granularity: str | None = None,
    k_granularity: str | None = None,
    v_granularity: str | None = None,
    scale_block: int | None = None,
    nan_safe: bool = False,
) -> Output:
    """Scaled dot product attention through the best backend that may serve the call.

    B batch, Sq/Sk lengths, Hq/Hkv heads (query head h reads KV head h // (Hq // Hkv)), D/Dv widths.

    q: [B, Sq, Hq, D] (`bshd`), [B, Hq, Sq, D] (`bhsd`) or packed [Tq, Hq, D] (`thd`); k, v likewise with Sk, Hkv and
        Dv, or a paged cache with `block_table`: [pages, page_size, Hkv, D] (`NHD`), [pages, Hkv, page_size, D] (`HND`).
    causal: later keys are hidden, on the diagonal that ends at the last key (`causal_alignment="bottom_right"`) or
        starts at the first (`"top_left"`). window_left, window_right: tokens seen besides oneself, -1 = all.
    softmax_scale: None = 1/sqrt(D). softcap: cap * tanh(score / cap), before the mask.
    sinks: float32 [Hq], raw logits in the denominator. alibi_slopes: float32 [Hq] or [B, Hq].
    attn_mask: bool (True = visible) or float (added), 2 to 4 dims that broadcast to [B, Hq, Sq, Sk].
    cu_seqlens_q, cu_seqlens_k: int32 [B + 1] with `thd`. seq_lens: int32 [B], valid keys. block_table: int32
        [B, max_pages]. *_descale: float32, multiply on read; granularity from the shape, or named.
    dropout_p, dropout_seed: counter-based dropout; without a seed one is drawn from torch's generator.
    backend: use this one or raise. policy: see `Policy`. validate: check lengths and tables by value, also on a GPU.

    Returns out, shaped as q with Dv and in q's dtype (or `out_dtype`), or (out, lse) with lse float32, natural log,
    [B, Hq, Sq] or packed [Hq, Tq]. A row that sees no key is exactly 0 with LSE -inf. Differentiable where the backend
    declares it. Raises RequestError, UnfitBackendError, NoBackendError, LoadError.
    """
    plain = (
        attn_mask is None and sinks is None and alibi_slopes is None and block_mask is None and cu_seqlens_q is None
        and seq_lens is None and block_table is None and q_descale is None and k_descale is None and v_descale is None
        and out is None and cu_seqlens_k is None
    )  # fmt: skip
    if plain and not torch.compiler.is_compiling():
        key = hot_key(
            q, k, v, layout, causal, causal_alignment, window_left, window_right, softmax_scale, softcap, max_seqlen_q,
            max_seqlen_k, kv_layout, dropout_p, return_lse, deterministic, batch_invariant, backend, policy, phase,
            attn_type, out_dtype, graph, validate, q_granularity, k_granularity, v_granularity, scale_block, nan_safe,
        )  # fmt: skip
        bound = _bound.get(key)
        if bound is not None and bound.simple:
            return bound.fast(q, k, v)
    given = Arguments(
        layout=layout, causal=causal, causal_alignment=causal_alignment, window_left=window_left,
        window_right=window_right, softmax_scale=softmax_scale, softcap=softcap, sinks=sinks, alibi_slopes=alibi_slopes,
        attn_mask=attn_mask, block_mask=block_mask, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, seq_lens=seq_lens, block_table=block_table,
        kv_layout=kv_layout, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, dropout_p=dropout_p,
        return_lse=return_lse, deterministic=deterministic, batch_invariant=batch_invariant, out=out, backend=backend,
        policy=policy, phase=phase, attn_type=attn_type, out_dtype=out_dtype, graph=graph, validate=validate,
        dropout_seed=dropout_seed, q_granularity=q_granularity, k_granularity=k_granularity, v_granularity=v_granularity,
        scale_block=scale_block, nan_safe=nan_safe,
    )  # fmt: skip
    if torch.compiler.is_compiling():
        from attn_backends.integrations.compiled import compiled_attention

        return compiled_attention(q, k, v, given)
    return dispatch(q, k, v, given)


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
    bound = _bound.get(key) if key is not None else None
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
        if len(_bound) >= _MAX_BOUND:
            for old in list(_bound)[: _MAX_BOUND // 2]:
                _bound.pop(old, None)
        _bound[key] = bound
    return bound


def device_of(device: torch.device) -> Device:
    """The facts of a tensor's device, after the device hooks had their word."""
    facts = Device.of(device.type, device.index)
    hooks = active_hooks()
    return facts if hooks is None else hooks.device(facts)


def request_from_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> Request:
    """The request that `attention(q, k, v, **given)` would make."""
    return read_request(q, k, v, arguments(given))[0]


def bind(decision: Decision) -> LoadedKernel:
    """The chosen kernel of a decision as a callable. Raises LoadError where it does not import."""
    return LoadedKernel(decision, _registry if decision.origin is None else decision.origin)
