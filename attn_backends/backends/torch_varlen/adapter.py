"""`torch.nn.attention.varlen.varlen_attn`: packed rows [T, H, D], lengths by cumulative sums, FlashAttention-2 below.

Its diagonal is bottom-right, windows hang on it, (-1, 0) means causal; it groups query heads by itself and wants K and V
of one width that is a multiple of 8. Gradients go through the function's own autograd.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention.varlen import AuxRequest, varlen_attn

from attn_backends.backends.packed_flash.conversions import Conversion, conversions_of
from attn_backends.backends.packed_flash.deliver import deliver_blank, deliver_grads, deliver_lse, deliver_out
from attn_backends.backends.packed_flash.rows import Rows, is_blank, prepare
from attn_backends.backends.torch_sdpa import operands
from attn_backends.backends.torch_sdpa.problem import Needs
from attn_backends.call import Grads

if TYPE_CHECKING:
    from attn_backends.call import Call

NEEDS = Needs(
    diagonals=("bottom_right",), window="two_sided", masks=False, width_multiple=8, equal_widths=True, vectors=True
)
_WITH_LSE = AuxRequest(lse=True)
# torch 2.11 groups heads without being told; later versions ask for a word.
_GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """`Call.saved` between forward and backward: the operands as leaves of the function's graph, and its output."""

    rows: Rows
    leaves: tuple[torch.Tensor, ...]
    out: torch.Tensor


def run(call: Call) -> None:
    """Write `call.out` and, where asked, `call.lse`."""
    if is_blank(call):
        deliver_blank(call)
        return
    rows = prepare(call, NEEDS, **_clearing(call))
    leaves = (rows.q, rows.k, rows.v)
    if call.needs_backward:
        leaves = (_leaf(rows.q), _leaf(rows.k), _leaf(rows.v))
    with torch.set_grad_enabled(call.needs_backward):
        out, lse = _attend(rows, *leaves)
    deliver_out(call, out.detach())
    if call.lse is not None:
        deliver_lse(lse, call.lse)
    if call.needs_backward:
        call.saved = Kept(rows=rows, leaves=leaves, out=out)


def backward(call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
    """Gradients of q, k, v; the manifest declares no LSE together with them, so `d_lse` is None."""
    kept: Kept | None = call.saved
    if kept is None:
        return Grads(q=torch.zeros_like(call.q), k=torch.zeros_like(call.k), v=torch.zeros_like(call.v))
    d_padded = operands.vectorised(operands.pad_width(d_out.to(kept.out.dtype), kept.out.shape[-1]))
    grads = torch.autograd.grad(kept.out, kept.leaves, d_padded, retain_graph=True)
    return deliver_grads(call, kept.rows.sign, *grads)


def conversions(call: Call) -> list[Conversion]:
    """What `run` is going to convert, with its bytes."""
    return conversions_of(call, NEEDS, **_clearing(call))


def _clearing(call: Call) -> dict[str, bool]:
    """The kernel leaves out what lies behind a sequence, but multiplies what a window hides by a weight of 0."""
    windowed = call.window_left >= 0
    return {"clear_k": windowed and call.needs_backward, "clear_v": windowed}


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_()


def _attend(rows: Rows, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = varlen_attn(
        q, k, v, rows.cu_q, rows.cu_k, rows.max_q, rows.max_k,
        return_aux=_WITH_LSE, scale=rows.scale, window_size=(rows.left, rows.right), **_GROUPED,
    )  # fmt: skip
    return out, lse
