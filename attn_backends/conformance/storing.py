"""Results back from logical order into the shapes that `attention` and its backward return.

The way back from `Problem`: outputs and gradients of its dense tensors go into the cells that the call's tensors have;
what no sequence owns is 0 (-inf in an LSE). Letters as in `Problem`, Hkv KV heads. No arithmetic but sums over what is shared.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attn_backends.conformance.problem import Problem
from attn_backends.conformance.visibility import cut
from attn_backends.host.arguments import Arguments

MINUS_INF = float("-inf")

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gradients:
    """q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv], scores [B, Hq, Sq, Sk] (of a float mask), sinks [Hq]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scores: torch.Tensor
    sinks: torch.Tensor


def stored_out(out: torch.Tensor, p: Problem, q: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """out [B, Hq, Sq, Dv] shaped as q with Dv, in `dtype`."""
    return p.queries.put(out, torch.zeros((*q.shape[:-1], out.shape[-1]), dtype=dtype, device=q.device))


def stored_lse(lse: torch.Tensor, p: Problem, q: torch.Tensor) -> torch.Tensor:
    """lse [B, Hq, Sq] as it is, or packed [Hq, Tq]."""
    if p.queries.kind != "packed":
        return lse
    rows = torch.full((*q.shape[:2], 1), MINUS_INF, dtype=lse.dtype, device=q.device)
    return p.queries.put(lse.unsqueeze(-1), rows).squeeze(-1).transpose(0, 1)


def logical_lse(d_lse: torch.Tensor | None, p: Problem) -> torch.Tensor | None:
    """The gradient of an LSE as [B, Hq, Sq], from the shape that the call returned."""
    if d_lse is None or p.queries.kind != "packed":
        return d_lse
    return p.queries.take(d_lse.transpose(0, 1).unsqueeze(-1)).squeeze(-1)


def stored_gradients(
    grads: Gradients, p: Problem, tensors: Tensors, a: Arguments, dtype: torch.dtype | None = None
) -> dict[str, torch.Tensor]:
    """Gradients by the names of `Grads`, shaped as their tensors, in their dtypes or in `dtype`.

    None for q, k, v of one byte: nothing flows into codes.
    """
    found = {}
    parts = zip("qkv", tensors, (p.queries, p.keys, p.keys), (grads.q, grads.k, grads.v), strict=True)
    for name, tensor, cells, grad in parts:
        if is_wide(tensor):
            zeros = torch.zeros(tensor.shape, dtype=dtype or tensor.dtype, device=tensor.device)
            found[name] = cells.put(grad, zeros, add=True)
    if p.bias is not None and a.attn_mask is not None:
        found["bias"] = _of_mask(grads.scores, a.attn_mask, dtype or a.attn_mask.dtype)
    if a.sinks is not None:
        found["sinks"] = grads.sinks.to(dtype or a.sinks.dtype)
    return found


def is_wide(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds numbers, not codes of a quantised format."""
    return tensor.is_floating_point() and tensor.element_size() >= 2


def by_kv_head(values: torch.Tensor, p: Problem) -> torch.Tensor:
    """[B, Hq, Sk, W] summed over the query heads of each KV head: [B, Hkv, Sk, W]."""
    batch, heads, *rest = values.shape
    return values.reshape(batch, p.kv_heads, heads // p.kv_heads, *rest).sum(dim=2)


def _of_mask(d_scores: torch.Tensor, mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The gradient of the scores, summed over what the mask broadcasts."""
    total = torch.zeros(mask.shape, dtype=d_scores.dtype, device=mask.device)
    part = cut(total, *d_scores.shape[2:])
    shared = [dim for dim in range(4) if part.shape[dim] == 1]
    part += d_scores.sum(dim=shared, keepdim=True) if shared else d_scores
    return total.to(dtype)
