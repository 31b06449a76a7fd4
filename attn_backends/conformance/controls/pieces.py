"""`Piece`: one sequence of a call, read whole; and the loops that turn per-sequence attention into a backend.

run      = run_pieces(call, attend)                       attend(piece) -> out [Hq, Sq, Dv], lse [Hq, Sq]
backward = backward_pieces(call, differentiate, dO, dL)   differentiate(piece, dO, dL) -> PieceGrads
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from attn_backends.call import Call, Grads
from attn_backends.conformance.controls import seeing
from attn_backends.conformance.controls.descaling import descale
from attn_backends.conformance.controls.keeping import kept
from attn_backends.conformance.controls.places import Place, at_keys, at_lse, at_queries, out_of_pages, places

MINUS_INF = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """One sequence in the work dtype, in memory of its own.

    q [Hq, Sq, D], k [Hkv, Sk, D], v [Hkv, Sk, Dv]: 0 at keys that no row sees, and at queries that see nothing
    visible, keep: bool [Hq, Sq, Sk], keep None without dropout; factor: 1 / (1 - p)
    added: [1 | Hq, 1 | Sq, 1 | Sk] or None; sinks: [Hq], -inf where there is none
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    visible: torch.Tensor
    added: torch.Tensor | None
    sinks: torch.Tensor
    keep: torch.Tensor | None
    factor: float
    scale: float
    softcap: float | None

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.q.shape[0] // self.k.shape[0]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PieceGrads:
    """q [Hq, Sq, D]; k [Hkv, Sk, D], v [Hkv, Sk, Dv]; scores [Hq, Sq, Sk], those of a float mask; sinks [Hq]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scores: torch.Tensor
    sinks: torch.Tensor


Attend = Callable[[Piece], tuple[torch.Tensor, torch.Tensor]]
Differentiate = Callable[[Piece, torch.Tensor, torch.Tensor], PieceGrads]


def run_pieces(call: Call, attend: Attend, work: torch.dtype | None = None) -> None:
    """Write out and lse, one sequence after the other; packed rows of no sequence get 0 and -inf."""
    with torch.no_grad():
        call.out.zero_()
        if call.lse is not None:
            call.lse.fill_(MINUS_INF)
        for place in places(call):
            out, lse = attend(piece(call, place, work))
            at_queries(call.out, call, place).copy_(out)
            if call.lse is not None:
                at_lse(call.lse, place).copy_(lse)


def backward_pieces(
    call: Call,
    differentiate: Differentiate,
    d_out: torch.Tensor,
    d_lse: torch.Tensor | None,
    work: torch.dtype | None = None,
) -> Grads:
    """All gradients that the call asks for."""
    with torch.no_grad():
        dtype = work_dtype(call, work)
        q, k, v = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (call.q, call.k, call.v))
        bias = torch.zeros(call.attn_mask.shape, dtype=dtype) if call.grad_bias and call.attn_mask is not None else None
        sinks = torch.zeros(call.q.shape[1 if call.layout == "bhsd" else -2], dtype=torch.float64)  # a sum of all rows
        for place in places(call):
            rows = at_queries(d_out, call, place).to(dtype).contiguous()
            lse = torch.zeros(rows.shape[:2], dtype=dtype) if d_lse is None else at_lse(d_lse, place).to(dtype)
            one = differentiate(piece(call, place, work), rows, lse)
            at_queries(q, call, place).copy_(one.q)
            at_keys(k, call, place).copy_(one.k)
            at_keys(v, call, place).copy_(one.v)
            sinks += one.sinks
            if bias is not None:
                own = seeing.of_sequence(bias, place)
                own += one.scores.sum_to_size(own.shape)
        given = None if bias is None or call.attn_mask is None else bias.to(call.attn_mask.dtype)
        of_sinks = sinks.to(call.sinks.dtype) if call.grad_sinks and call.sinks is not None else None
        return Grads(q=q, k=k, v=v, bias=given, sinks=of_sinks)


def work_dtype(call: Call, work: torch.dtype | None = None) -> torch.dtype:
    """`work`, or float64 for float64 and float32 for everything else."""
    return work or (torch.float64 if call.q.dtype == torch.float64 else torch.float32)


def piece(call: Call, place: Place, work: torch.dtype | None = None) -> Piece:
    """Read one sequence."""
    dtype = work_dtype(call, work)
    take = at_keys if call.block_table is None else out_of_pages
    q = _values(at_queries(call.q, call, place), call, "q", place, dtype)
    k = _values(take(call.k, call, place), call, "k", place, dtype)
    v = _values(take(call.v, call, place), call, "v", place, dtype)
    heads = q.shape[0]
    seen = seeing.visible(call, place, heads)
    keys = seen.reshape(k.shape[0], heads // k.shape[0] * place.seq_q, place.seq_k).any(dim=1).unsqueeze(-1)
    no_sink = torch.full((heads,), MINUS_INF, dtype=dtype)
    return Piece(
        q=torch.where(seen.any(dim=-1, keepdim=True), q, 0.0),
        k=torch.where(keys, k, 0.0),
        v=torch.where(keys, v, 0.0),
        visible=seen,
        added=seeing.added(call, place, dtype),
        sinks=no_sink if call.sinks is None else call.sinks.to(dtype),
        keep=kept(call.dropout_p, call.dropout_seed, place.index, heads, place.seq_q, place.seq_k)
        if call.dropout_p > 0
        else None,
        factor=1.0 / (1.0 - call.dropout_p),
        scale=call.softmax_scale,
        softcap=call.softcap,
    )


def _values(rows: torch.Tensor, call: Call, name: str, place: Place, dtype: torch.dtype) -> torch.Tensor:
    values = rows.to(dtype, memory_format=torch.contiguous_format, copy=True)
    scale = descale(call, name, place, rows.shape[0])
    return values if scale is None else values * scale.to(dtype)
