"""`attention()`: tensors -> Request -> Decision -> kernel.

The hot path makes a flat key from the tensors' metadata and the arguments, looks up a `Bound` and calls it; a Request
is built on a miss only. Compiled code goes through the custom op (`integrations/compiled.py`), which decides the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import is_grad_enabled  # names of this module: the hot path looks them up at every call
from torch.compiler import is_compiling

from attn_backends.host.arguments import Arguments, arguments
from attn_backends.host.dispatch import find_bound, registry, remember
from attn_backends.host.launch import Bound, Output
from attn_backends.host.reading import read_request
from attn_backends.registry.knobs import deciding_knobs
from attn_backends.selector.scope import open_scopes
from attn_backends.selector.select import changes

if TYPE_CHECKING:
    from attn_backends.block_mask import BlockMask
    from attn_backends.request import Request
    from attn_backends.selector.policy import Policy

last_call: tuple[Any, Bound | None] = (None, None)
hot_calls: dict[Any, Bound] = {}  # plain calls (no tensor beside q, k, v) by everything they depend on


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
    softmax_scale: None = 1/sqrt(D); one beyond float32 overflows. softcap: cap * tanh(score / cap), before the mask.
    sinks: float32 [Hq], raw logits in the denominator. alibi_slopes: float32 [Hq] or [B, Hq].
    attn_mask: bool (True = visible) or float (added), 2 to 4 dims that broadcast to [B, Hq, Sq, Sk].
    cu_seqlens_q, cu_seqlens_k: int32 [B + 1] with `thd`. seq_lens: int32 [B], valid keys. block_table: int32
        [B, max_pages]. *_descale: float32, multiply on read; granularity from the shape, or named.
    dropout_p, dropout_seed: counter-based dropout, a seed of 64 bits; without one it is drawn from torch's generator.
    backend: use this one or raise. policy: see `Policy`. validate: check lengths and tables by value, also on a GPU.

    Returns out, shaped as q with Dv and in q's dtype (or `out_dtype`), or (out, lse) with lse float32, natural log,
    [B, Hq, Sq] or packed [Hq, Tq]. A row that sees no key is exactly 0 with LSE -inf. Differentiable where the backend
    declares it. Raises RequestError, UnfitBackendError, NoBackendError, LoadError.
    """
    plain = (
        attn_mask is None and sinks is None and alibi_slopes is None and block_mask is None and cu_seqlens_q is None
        and seq_lens is None and block_table is None and q_descale is None and k_descale is None and v_descale is None
        and out is None and cu_seqlens_k is None and max_seqlen_q is None and max_seqlen_k is None
        and q_granularity is None and k_granularity is None and v_granularity is None and scale_block is None
        and out_dtype is None and graph is None and type(dropout_p) is float and not dropout_p and dropout_seed is None
        and return_lse is False and type(window_left) is int and type(window_right) is int
        and (softmax_scale is None or type(softmax_scale) is float) and (softcap is None or type(softcap) is float)
    )  # fmt: skip
    exact = (  # 1, 1.0 and True are equal keys, but not all of them are legal: others go the long way, which says so
        type(causal) is bool and type(deterministic) is bool  # type: ignore[redundant-expr]  # callers pass anything
        and type(batch_invariant) is bool and type(validate) is bool and type(nan_safe) is bool  # type: ignore[redundant-expr]  # likewise
    )  # fmt: skip
    global last_call
    key = None
    if plain and exact and not is_compiling():
        try:  # inline, because packing forty arguments for a function costs more than the look-up
            key = (
                q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device,
                None if q.is_contiguous() else q.stride(), None if k.is_contiguous() else k.stride(),
                None if v.is_contiguous() else v.stride(),
                registry.alignment_matters and (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15,
                is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad),
                layout, causal, causal_alignment, window_left, window_right, softmax_scale, softcap, kv_layout,
                deterministic, batch_invariant, backend, policy, phase, attn_type, validate, nan_safe,
                open_scopes(), deciding_knobs(), registry.changes, changes(),
            )  # fmt: skip
            last, bound = last_call  # layers of a model ask alike: comparing costs half of hashing
            if key != last:
                bound = hot_calls.get(key)
        except (AttributeError, RuntimeError, TypeError):
            key = bound = None  # something is no plain tensor, or not hashable: the slow path says what
        if bound is not None:
            last_call = (key, bound)
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
    if is_compiling():
        from attn_backends.integrations.compiled import compiled_attention

        return compiled_attention(q, k, v, given)  # type: ignore[no-any-return]  # (out, lse) or out
    bound = find_bound(q, k, v, given)
    if key is not None and bound.simple:
        remember(hot_calls, key, bound)
    return bound(q, k, v, given)


def request_from_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> Request:
    """The request that `attention(q, k, v, **given)` would make."""
    return read_request(q, k, v, arguments(given))[0]
