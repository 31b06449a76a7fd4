"""`Problem`: one call, read into plain dense float64 tensors; what oracle and baseline start from.

Nothing is computed here: cells are read, descales applied, visibility and added biases laid out. A key that no row may
see is 0 from here on, so that what lies there, NaN included, reaches nobody. Letters: B sequences, Hq/Hkv heads, Sq/Sk
the longest query and key sequence, D/Dv widths.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attn_backends.conformance.descales import Scaling, multiplied
from attn_backends.conformance.dropped import kept_weights
from attn_backends.conformance.logical import Cells, key_cells, query_cells
from attn_backends.conformance.visibility import distances, float_mask, visible_keys
from attn_backends.host.arguments import Arguments


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """One call, dense and in float64.

    q: [B, Hq, Sq, D]; k: [B, Hq, Sk, D]; v: [B, Hq, Sk, Dv], repeated over the query heads that read them
    visible: bool [B, Hq, Sq, Sk]; keep: the same for dropout, or None
    bias: what a float mask adds, broadcastable to the scores, or None; alibi: [B, Hq, Sq, Sk] or None
    sinks: [Hq] or None; queries, keys: where the tokens lie in storage
    value_rms: root of the mean square of the values that some row sees, 0 without any
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    visible: torch.Tensor
    bias: torch.Tensor | None
    alibi: torch.Tensor | None
    sinks: torch.Tensor | None
    keep: torch.Tensor | None
    dropout_p: float
    scale: float
    softcap: float | None
    value_rms: float
    kv_heads: int
    queries: Cells
    keys: Cells


def read_problem(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Arguments) -> Problem:
    """The call `attention(q, k, v, **a)` as dense tensors. Differentiable in q, k, v, a float mask and the sinks."""
    queries, keys = query_cells(q, a), key_cells(k, a)
    heads, kv_heads = q.shape[-2 if a.layout != "bhsd" else 1], _kv_heads(k, keys)
    distance = distances(queries, keys, a)
    visible = visible_keys(queries, keys, distance, a, heads)
    batch, _heads, rows, columns = visible.shape

    values_q = multiplied(queries.take(q), _scaling(q, "q", (heads, kv_heads), a), queries)
    values_k = multiplied(keys.take(k), _scaling(k, "k", (kv_heads,), a), keys)
    values_v = multiplied(keys.take(v), _scaling(v, "v", (kv_heads,), a), keys)
    reads = torch.arange(heads, device=q.device) // (heads // kv_heads)
    seen = visible.reshape(batch, kv_heads, heads // kv_heads * rows, columns).any(dim=2).unsqueeze(-1)
    values_k, values_v = torch.where(seen, values_k, 0.0), torch.where(seen, values_v, 0.0)
    return Problem(
        q=torch.where(visible.any(dim=-1, keepdim=True), values_q, 0.0),
        k=values_k[:, reads],
        v=values_v[:, reads],
        visible=visible,
        bias=float_mask(a, rows, columns),
        alibi=_alibi(a, distance, heads),
        sinks=None if a.sinks is None else a.sinks.to(torch.float64),
        keep=_keep(a, batch, heads, rows, columns, q.device),
        dropout_p=a.dropout_p,
        scale=q.shape[-1] ** -0.5 if a.softmax_scale is None else float(a.softmax_scale),
        softcap=a.softcap,
        value_rms=_rms_of_seen(values_v.detach(), seen),
        kv_heads=kv_heads,
        queries=queries,
        keys=keys,
    )


def _kv_heads(k: torch.Tensor, keys: Cells) -> int:
    return int(keys.view(k).shape[2])


def _scaling(tensor: torch.Tensor, name: str, heads: tuple[int, ...], a: Arguments) -> Scaling:
    return Scaling(
        descale=getattr(a, f"{name}_descale"),
        named=getattr(a, f"{name}_granularity"),
        heads=heads,
        block=a.scale_block,
        stored=tuple(tensor.shape),
    )


def _alibi(a: Arguments, distance: torch.Tensor, heads: int) -> torch.Tensor | None:
    """-slope * |distance|, [B, Hq, Sq, Sk]."""
    if a.alibi_slopes is None:
        return None
    slopes = a.alibi_slopes.to(torch.float64).reshape(-1, heads, 1, 1)
    return -slopes * distance.abs().unsqueeze(1)


def _keep(a: Arguments, batch: int, heads: int, rows: int, columns: int, device: torch.device) -> torch.Tensor | None:
    if a.dropout_p == 0.0:
        return None
    if a.dropout_seed is None:
        raise ValueError("dropout without dropout_seed has no expected value: give the seed that the call gets")
    return kept_weights(batch, heads, rows, columns, a.dropout_p, a.dropout_seed).to(device)


def _rms_of_seen(values: torch.Tensor, seen: torch.Tensor) -> float:
    """Over every number of v [B, Hkv, Sk, Dv] at a key that some row sees; non-finite ones left out."""
    counted = seen.expand(values.shape) & values.isfinite()
    numbers = values[counted]
    return float(numbers.square().mean().sqrt()) if numbers.numel() else 0.0
