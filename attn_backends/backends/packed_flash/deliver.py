"""Results of a packed kernel in the caller's tensors: out, the LSE, gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attn_backends.backends.packed_flash.keys import lengths_of
from attn_backends.backends.torch_sdpa import operands
from attn_backends.call import Grads

if TYPE_CHECKING:
    from attn_backends.call import Call


def deliver_out(call: Call, out: torch.Tensor) -> None:
    """Write out [Tq, Hq, >= Dv], the kernel's own memory, unless it may take the place or the kernel wrote there by itself."""
    out = out[..., : call.out.shape[-1]]
    if not call.hand_over(out):
        call.out.copy_(out)


def deliver_lse(lse: torch.Tensor, target: torch.Tensor) -> None:
    """Write a natural-log LSE; kernels of FlashAttention-2 say +inf of a row that sees nothing, where it is -inf."""
    target.copy_(lse).masked_fill_(lse == torch.inf, -torch.inf)


def deliver_blank(call: Call) -> None:
    """The answer where no row sees any key."""
    call.out.zero_()
    if call.lse is not None:
        call.lse.fill_(-torch.inf)


def deliver_grads(call: Call, sign: float, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Grads:
    """Gradients in the widths of q, k, v; 0 in rows that belong to no sequence, which no kernel writes."""
    cu_q, cu_k = lengths_of(call)
    return Grads(q=_owned(operands.signed(q, sign), call.q, cu_q), k=_owned(k, call.k, cu_k), v=_owned(v, call.v, cu_k))


def _owned(grad: torch.Tensor, like: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
    row = torch.arange(grad.shape[0], device=grad.device, dtype=torch.int32)
    return torch.where((row < cu_seqlens[-1]).view(-1, 1, 1), grad[..., : like.shape[-1]], grad.new_zeros(()))
