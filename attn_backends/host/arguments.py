"""`Arguments`: everything `attention()` takes beside q, k and v, as given. Shapes stand in `attn_backends.call.Call`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attn_backends.box import nearest_names
from attn_backends.errors import RequestError

if TYPE_CHECKING:
    import torch

    from attn_backends.block_mask import BlockMask
    from attn_backends.selector.policy import Policy


@dataclass(slots=True, kw_only=True, eq=False)
class Arguments:
    """One call's arguments; the names and defaults are the public ones."""

    layout: str = "bshd"
    causal: bool = False
    causal_alignment: str = "bottom_right"
    window_left: int = -1
    window_right: int = -1
    softmax_scale: float | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None
    attn_mask: torch.Tensor | None = None
    block_mask: BlockMask | None = None
    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_k: torch.Tensor | None = None
    max_seqlen_q: int | None = None
    max_seqlen_k: int | None = None
    seq_lens: torch.Tensor | None = None
    block_table: torch.Tensor | None = None
    kv_layout: str = "NHD"
    q_descale: torch.Tensor | float | None = None
    k_descale: torch.Tensor | float | None = None
    v_descale: torch.Tensor | float | None = None
    dropout_p: float = 0.0
    return_lse: bool = False
    deterministic: bool = False
    batch_invariant: bool = False
    nan_safe: bool = False
    out: torch.Tensor | None = None
    backend: str | None = None
    policy: Policy | None = None
    phase: str | None = None
    attn_type: str = "decoder"
    out_dtype: torch.dtype | str | None = None
    graph: str | None = None
    validate: bool = False
    dropout_seed: int | None = None
    q_granularity: str | None = None
    k_granularity: str | None = None
    v_granularity: str | None = None
    scale_block: int | None = None


NAMES = tuple(field.name for field in dataclasses.fields(Arguments))


def arguments(given: dict[str, Any]) -> Arguments:
    """Arguments from keywords. Raises RequestError for a name that is none, with the nearest."""
    try:
        return Arguments(**given)
    except TypeError:
        for name, value in given.items():
            if name not in NAMES:
                near = nearest_names(name, NAMES)
                raise RequestError(name, value, "an argument of attention()", hint=near) from None
        raise
