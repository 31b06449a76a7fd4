"""Packed calls (`thd`) on FlashAttention-3.

The kernel reads whole tiles of V, rows behind the sequence included, and gives them a weight of 0: what belongs to no
sequence is therefore cleared, in a copy of V.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attn_backends.backends.fa3 import kernel
from attn_backends.backends.fa3.dense import needs_of, softcap_of, takes_output
from attn_backends.backends.packed_flash.conversions import Conversion, conversions_of
from attn_backends.backends.packed_flash.deliver import deliver_blank, deliver_lse, deliver_out
from attn_backends.backends.packed_flash.rows import is_blank, prepare

if TYPE_CHECKING:
    from attn_backends.call import Call


def run_packed(call: Call) -> None:
    """Write `call.out` and, where asked, `call.lse`."""
    if is_blank(call):
        deliver_blank(call)
        return
    rows = prepare(call, needs_of(call), clear_k=False, clear_v=True)
    out, lse, *_ = kernel.forward(
        rows.q, rows.k, rows.v, out=call.out if takes_output(call.out, rows.v) else None,
        cu_seqlens_q=rows.cu_q, cu_seqlens_k=rows.cu_k, max_seqlen_q=rows.max_q, max_seqlen_k=rows.max_k,
        softmax_scale=rows.scale, is_causal=rows.causal, softcap=softcap_of(call), num_splits=1,
    )  # fmt: skip
    deliver_out(call, out)
    if call.lse is not None:
        deliver_lse(lse, call.lse)


def packed_conversions(call: Call) -> list[Conversion]:
    """What `run_packed` is going to convert, with its bytes."""
    return conversions_of(call, needs_of(call), clear_k=False, clear_v=True)
