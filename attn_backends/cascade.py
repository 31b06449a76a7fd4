"""`cascade_attention`: sequences with a common prefix, whose pages are read once per group instead of once per sequence.

    A = attention(all queries of a group, the prefix)         one sequence of B * Sq rows: everyone sees every key
    B = attention(each sequence's queries, its own tokens)    as usual, causal among the new tokens
    merge_states(A, B)

Two calls of `attention()`, each decided like any other, and their merge, which is one kernel on a GPU with triton. Needs
torch.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

import torch

from attn_backends.api import attention
from attn_backends.errors import RequestError
from attn_backends.merge import merge_states

_BY_POSITION = ("window_left", "window_right", "alibi_slopes", "attn_mask", "block_mask", "dropout_p")
_OWN = ("layout", "cu_seqlens_q", "max_seqlen_q", "max_seqlen_k", "out", "return_lse", "phase")


def cascade_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    prefix_table: torch.Tensor,
    prefix_lens: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    groups: torch.Tensor | None = None,
    causal: bool = True,
    sinks: torch.Tensor | None = None,
    return_lse: bool = False,
    **arguments: Any,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of B sequences, each over its group's prefix and then over its own tokens.

    q: [B, Sq, Hq, D], the new tokens, which are the last of each sequence's own; contiguous, or it is copied
    k_cache, v_cache: the pages of both, as in `attention()`
    prefix_table, prefix_lens: int32 [G, pages] and [G], of every group
    block_table, seq_lens: int32 [B, pages] and [B], of every sequence's own tokens, the new ones included
    groups: int32 [G + 1], the first sequence of every group, which lie one after another; None = all are one group
    arguments: others of `attention()`, given to both parts: scale, softcap, descales, kv_layout, backend, policy, ...

    Returns out [B, Sq, Hq, Dv], with `return_lse` also lse float32 [B, Hq, Sq]. Rounding aside, what one call over
    prefix and own tokens gives. Raises RequestError for what depends on positions across both parts (windows, ALiBi,
    masks), and as `attention()` does.
    """
    _check(q, arguments)
    batch, new, heads, width = q.shape
    if groups is None:
        groups = torch.arange(2, dtype=torch.int32, device=q.device) * batch  # without a copy from the host
    shared_out, shared_lse = attention(
        q.reshape(batch * new, heads, width), k_cache, v_cache, layout="thd", cu_seqlens_q=groups if new == 1 else groups * new,
        max_seqlen_q=batch * new, block_table=prefix_table, seq_lens=prefix_lens, phase="append", causal=False,
        return_lse=True, **arguments,
    )  # fmt: skip
    own_out, own_lse = attention(
        q, k_cache, v_cache, block_table=block_table, seq_lens=seq_lens, causal=causal, sinks=sinks, return_lse=True,
        **arguments,
    )  # fmt: skip
    out, lse = _merged(
        shared_out.view(batch, new, heads, -1), shared_lse.view(heads, batch, new).transpose(0, 1), own_out, own_lse
    )
    return (out, lse) if return_lse else out


def _merged(*states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`merge_states(out_a, lse_a, out_b, lse_b)`, by one kernel where there is one for these."""
    fused = _kernel() if states[0].device.type == "cuda" else None
    if fused is not None and fused.takes(states):
        out, lse = fused.merge(*states)
    else:
        out, lse = merge_states(*states)
    return out, lse


@functools.cache
def _kernel() -> ModuleType | None:
    """`fused_merge`; None without triton."""
    try:
        return importlib.import_module("attn_backends.host.fused_merge")
    except ImportError:
        return None


def _check(q: torch.Tensor, arguments: dict[str, Any]) -> None:
    if q.dim() != 4:
        raise RequestError("q", f"shape {list(q.shape)}", "4 dims, [batch, new tokens, heads, head_dim]")
    for name in (*_BY_POSITION, *_OWN):
        if arguments.get(name) is not None:
            why = "a cascade has no one diagonal" if name in _BY_POSITION else "a cascade sets it itself"
            raise RequestError(name, "given", "none", hint=why)
