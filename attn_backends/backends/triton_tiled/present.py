"""Which features a call has, as bits of one number: portable kernels ask at run time what others know when compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton.language as tl

if TYPE_CHECKING:
    from attn_backends.call import Call

STARTS_Q: tl.constexpr = tl.constexpr(1)
STARTS_K: tl.constexpr = tl.constexpr(2)
LENGTHS_K: tl.constexpr = tl.constexpr(4)
SLOPES: tl.constexpr = tl.constexpr(8)
SINK: tl.constexpr = tl.constexpr(16)
INNER: tl.constexpr = tl.constexpr(32)


def present_in(call: Call) -> int:
    """The bits of a call."""
    block = call.block_mask
    found = (
        call.cu_seqlens_q is not None, call.cu_seqlens_k is not None,
        call.seq_lens is not None and call.cu_seqlens_k is None, call.alibi_slopes is not None, call.sinks is not None,
        block is not None and block.mask is not None,
    )  # fmt: skip
    return sum(1 << place for place, there in enumerate(found) if there)
