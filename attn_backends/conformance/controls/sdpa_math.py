"""Control: torch's own `scaled_dot_product_attention`, everything hidden or added given as a float mask.

Its quirks are adapted: rows that see nothing are cut out of the call by a zero mask and zeroed after, GQA repeats K and
V. It knows no softcap, sink, LSE or dropout by Philox, and declares none.
"""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attn_backends.call import Call, Grads
from attn_backends.conformance.controls.declaring import dense, manifest
from attn_backends.conformance.controls.pieces import MINUS_INF, Piece, PieceGrads, backward_pieces, run_pieces
from attn_backends.conformance.controls.steps import spread

_OFF = {name: [False] for name in ("softcap", "sinks", "lse", "dropout")}
MANIFEST = manifest("sdpa_math", dense(**_OFF, grad_sinks=[False]))


def run(call: Call) -> None:
    """See `Call`."""
    run_pieces(call, _attend)


def backward(call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Grads:
    """See `Call`."""
    return backward_pieces(call, _differentiate, d_out, d_lse)


def _sdpa(p: Piece, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
    some = p.visible.any(dim=-1, keepdim=True)
    mask = torch.where(p.visible, added, torch.where(some, MINUS_INF, 0.0))
    with sdpa_kernel(SDPBackend.MATH):
        out = scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask[None], scale=p.scale)[0]
    return torch.where(some, out, 0.0)


def _zero_or_added(p: Piece) -> torch.Tensor:
    zero = torch.zeros(p.visible.shape, dtype=p.q.dtype)
    return zero if p.added is None else zero + p.added


def _attend(p: Piece) -> tuple[torch.Tensor, torch.Tensor]:
    if p.k.shape[1] == 0:
        return p.q.new_zeros((*p.q.shape[:2], p.v.shape[2])), p.q.new_full(p.q.shape[:2], MINUS_INF)
    out = _sdpa(p, p.q, spread(p, p.k), spread(p, p.v), _zero_or_added(p))
    return out, p.q.new_zeros(p.q.shape[:2])  # nobody asks for the LSE


def _differentiate(p: Piece, d_out: torch.Tensor, _d_lse: torch.Tensor) -> PieceGrads:
    leaves = [x.detach().clone().requires_grad_() for x in (p.q, p.k, p.v, _zero_or_added(p))]
    q, k, v, added = leaves
    if k.shape[1] == 0:
        return PieceGrads(
            q=torch.zeros_like(q), k=k.detach(), v=v.detach(), scores=added.detach(), sinks=torch.zeros_like(p.sinks)
        )
    with torch.enable_grad():
        out = _sdpa(p, q, spread(p, k), spread(p, v), added)
        found = torch.autograd.grad((out * d_out).sum(), leaves, materialize_grads=True)
    return PieceGrads(q=found[0], k=found[1], v=found[2], scores=found[3], sinks=torch.zeros_like(p.sinks))
