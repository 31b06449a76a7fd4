"""q, k and v of one sequence in the compute dtype: copied into one memory order, and multiplied by their descales.

Descales are float32 and multiply on read: value[h, s, d] = stored[h, s, d] * descale.
"""

from __future__ import annotations

import torch

from attn_backends.backends.eager.precision import compute_dtype
from attn_backends.backends.eager.sequences import Sequence, cached_rows, key_rows, query_rows
from attn_backends.call import Call
from attn_backends.quantization import broadcast_scale, token_scale


def read_q(call: Call, sequence: Sequence) -> torch.Tensor:
    """[Hq, seq_q, D] in the compute dtype, new contiguous memory."""
    rows = query_rows(call.q, call, sequence)
    if call.q_descale is None:
        return _copied(rows, call)
    scale = _scale(call.q_descale, call.q_granularity, call, sequence, queries=True)
    if scale.shape[0] not in (1, rows.shape[0]):  # scaled by KV head
        scale = scale.repeat_interleave(rows.shape[0] // scale.shape[0], dim=0)
    values = _copied(rows, call)
    return values * scale.to(values.device, values.dtype)


def read_k(call: Call, sequence: Sequence) -> torch.Tensor:
    """[Hkv, seq_k, D] in the compute dtype, new contiguous memory."""
    return _read_stored(call.k, call.k_descale, call.k_granularity, call, sequence)


def read_v(call: Call, sequence: Sequence) -> torch.Tensor:
    """[Hkv, seq_k, Dv] in the compute dtype, new contiguous memory."""
    return _read_stored(call.v, call.v_descale, call.v_granularity, call, sequence)


def _read_stored(
    tensor: torch.Tensor, descale: torch.Tensor | None, granularity: str, call: Call, sequence: Sequence
) -> torch.Tensor:
    stored = (cached_rows if call.block_table is not None else key_rows)(tensor, call, sequence)
    values = _copied(stored, call)
    if descale is None:
        return values
    scale = _scale(descale, granularity, call, sequence, queries=False)
    return values * scale.to(values.device, values.dtype)


def _copied(rows: torch.Tensor, call: Call) -> torch.Tensor:
    """A contiguous copy, always: products then see the same memory order and alignment whatever the strides were."""
    return torch.empty(rows.shape, dtype=compute_dtype(call.q.dtype), device=rows.device).copy_(rows)


def _scale(descale: torch.Tensor, granularity: str, call: Call, sequence: Sequence, *, queries: bool) -> torch.Tensor:
    """A sequence's descale as [1 | heads, 1 | tokens, 1 | width]."""
    if granularity == "per_token_head":
        return _scale_by_token(descale, call, sequence, queries=queries)
    if granularity == "block":
        if call.scale_block is None:
            raise ValueError("granularity block without scale_block")
        tokens = sequence.seq_q if queries else sequence.seq_k
        block = torch.arange(tokens, device=descale.device) // call.scale_block
        return descale[sequence.index].index_select(1, block).unsqueeze(-1)
    if granularity == "per_head" and descale.dim() == 2:
        descale = descale[sequence.index]
    return broadcast_scale(descale, granularity)


def _scale_by_token(descale: torch.Tensor, call: Call, sequence: Sequence, *, queries: bool) -> torch.Tensor:
    """Descales [B, S, heads], packed [T, heads] or beside a paged cache, as [heads, tokens, 1]."""
    if not queries and call.block_table is not None:
        return cached_rows(descale.unsqueeze(-1), call, sequence)
    first, tokens, packed = (
        (sequence.first_q, sequence.seq_q, sequence.packed_q)
        if queries
        else (sequence.first_k, sequence.seq_k, sequence.packed_k)
    )
    return token_scale(descale[first : first + tokens] if packed else descale[sequence.index, :tokens])
