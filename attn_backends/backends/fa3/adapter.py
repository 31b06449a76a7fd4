"""FlashAttention-3's forward, as `fa3-fwd` builds it: bfloat16, dense and packed tensors, causal, softcap.

Loading this module loads the package; a broken one is an ImportError that says what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attn_backends.backends.fa3.dense import needs_of, run_dense
from attn_backends.backends.fa3.packed import packed_conversions, run_packed
from attn_backends.backends.torch_sdpa.conversions import Conversion, conversions_of

if TYPE_CHECKING:
    from attn_backends.call import Call


def run(call: Call) -> None:
    """Write `call.out` and, where asked, `call.lse`."""
    if call.layout == "thd":
        run_packed(call)
    else:
        run_dense(call, needs_of(call))


def conversions(call: Call) -> list[Conversion]:
    """What `run` is going to convert, with its bytes."""
    return packed_conversions(call) if call.layout == "thd" else conversions_of(call, needs_of(call))
