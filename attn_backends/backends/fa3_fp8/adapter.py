"""FlashAttention-3 on q, k and v in e4m3, each scaled per tensor or per head; the output is bfloat16.

The softmax weights are rounded to e4m3 too, hence `numerics = "quantized"`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attn_backends.backends.fa3.dense import run_dense
from attn_backends.backends.torch_sdpa.conversions import Conversion, conversions_of
from attn_backends.backends.torch_sdpa.problem import Needs

if TYPE_CHECKING:
    import torch

    from attn_backends.call import Call

NEEDS = Needs(diagonals=("bottom_right",), masks=False, width_multiple=16, equal_widths=True, vectors=True)


def run(call: Call) -> None:
    """Write `call.out` and, where asked, `call.lse`."""
    run_dense(call, NEEDS, **_descales(call))


def conversions(call: Call) -> list[Conversion]:
    """What `run` is going to convert, with its bytes."""
    return conversions_of(call, NEEDS)


def _descales(call: Call) -> dict[str, torch.Tensor]:
    """Per sequence and KV head, as the kernel takes them: views [B, Hkv], no copies."""
    batch, heads = call.q.shape[0], call.k.shape[2 if call.layout == "bshd" else 1]
    given = {"q_descale": call.q_descale, "k_descale": call.k_descale, "v_descale": call.v_descale}
    return {name: scale.expand(batch, heads) for name, scale in given.items() if scale is not None}
