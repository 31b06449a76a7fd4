"""The host's one `autograd.Function`: forward through the chosen kernel, backward through its `backward` callable."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from attn_backends.call import Call, Grads
    from attn_backends.host.arguments import Arguments
    from attn_backends.host.launch import Bound, Output

_RELEASED: Any = None  # stands in a stored Call where a tensor was; autograd keeps those


def differentiable(bound: Bound, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Arguments) -> Output:
    """Run the call and record its backward."""
    out, lse = _Attention.apply(bound, a, q, k, v, a.attn_mask, a.sinks)  # type: ignore[no-untyped-call]  # torch's
    return (out, lse) if a.return_lse else out


class _Attention(torch.autograd.Function):
    """Gradients of q, k, v, a float mask and the sinks; through the output and the LSE."""

    @staticmethod
    def forward(
        ctx: Any,
        bound: Bound,
        a: Arguments,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None,
        sinks: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        call = bound.call(q, k, v, a)
        bound.run(call)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, mask, sinks, call.out, call.lse, *_further_tensors(call))
        ctx.bound = bound
        ctx.call = stored_call(call)
        result = bound.result(call, a)
        out = result[0] if isinstance(result, tuple) else result
        return out, call.lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: torch.Tensor | None, d_lse: torch.Tensor | None) -> tuple[Any, ...]:
        q, k, v, mask, sinks, out, lse, *_ = ctx.saved_tensors  # raises where one was modified since the forward
        if d_out is None and d_lse is None:
            return (None,) * 7
        bound = ctx.bound
        call = restored_call(ctx.call, bound, q, k, v, mask, sinks, out, lse)
        d_out = torch.zeros_like(out) if d_out is None else d_out.to(out.dtype)
        grads = run_backward(bound, call, d_out, d_lse)
        tensors = (grads.q, grads.k, grads.v, grads.bias, grads.sinks)
        needed = ctx.needs_input_grad[2:]
        return (
            None,
            None,
            *(_as(g, x) if want else None for g, x, want in zip(tensors, (q, k, v, mask, sinks), needed, strict=True)),
        )


def _as(gradient: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    return None if gradient is None else gradient.to(like.dtype)


def _further_tensors(call: Call) -> list[torch.Tensor]:
    """Lengths, tables, slopes, descales and blocks: the call keeps them; saved as well, their changes are noticed."""
    block = call.block_mask
    further = [
        call.alibi_slopes, call.cu_seqlens_q, call.cu_seqlens_k, call.seq_lens, call.block_table, call.q_descale,
        call.k_descale, call.v_descale, *(() if block is None else (block.blocks, block.mask)),
    ]  # fmt: skip
    return [tensor for tensor in further if tensor is not None]


def stored_call(call: Call) -> Call:
    """The call without the tensors that autograd saves itself, so that no output keeps itself alive."""
    return dataclasses.replace(
        call, q=_RELEASED, k=_RELEASED, v=_RELEASED, out=_RELEASED, lse=None, attn_mask=None, sinks=None
    )


def restored_call(
    call: Call,
    bound: Bound,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    sinks: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> Call:
    """The stored call with its tensors back in place."""
    q, k, v = (bound.lowered(tensor) for tensor in (q, k, v))
    mask = None if mask is None else bound.lowered_mask(mask)
    return dataclasses.replace(call, q=q, k=k, v=v, out=out, lse=lse, attn_mask=mask, sinks=sinks)


def run_backward(bound: Bound, call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
    """The gradients of a call: the backend's, or zeros where there is nothing to differentiate."""
    if bound.empty or bound.loaded.backward is None:
        return _zero_grads(call)
    found: Grads = bound.backward(call, d_out, d_lse)
    return found


def _zero_grads(call: Call) -> Grads:
    from attn_backends.call import Grads

    bias = torch.zeros_like(call.attn_mask) if call.grad_bias and call.attn_mask is not None else None
    sinks = torch.zeros_like(call.sinks) if call.grad_sinks and call.sinks is not None else None
    zeros = (torch.zeros_like(tensor) for tensor in (call.q, call.k, call.v))
    q, k, v = zeros
    return Grads(q=q, k=k, v=v, bias=bias, sinks=sinks)
