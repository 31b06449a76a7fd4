"""What `prepare` is going to convert for a packed call, from shapes and strides alone: (name, bytes written)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attn_backends.backends.packed_flash.rows import is_blank

if TYPE_CHECKING:
    import torch

    from attn_backends.backends.torch_sdpa.problem import Needs
    from attn_backends.call import Call

Conversion = tuple[str, int]


def conversions_of(call: Call, needs: Needs, *, clear_k: bool, clear_v: bool) -> list[Conversion]:
    """Every copy of this launch, under the names of the manifests' `converts`."""
    if is_blank(call):
        return []
    width_qk, width_v = needs.widths(call.q.shape[-1], call.v.shape[-1])
    widths = ((call.q, width_qk), (call.k, width_qk), (call.v, width_v))
    cleared = [tensor for tensor, clear in ((call.k, clear_k), (call.v, clear_v)) if clear]
    kept = [call.q, *(tensor for tensor, clear in ((call.k, clear_k), (call.v, clear_v)) if not clear)]
    found = {
        "make_contiguous": sum(_bytes(tensor) for tensor in kept if not needs.memory(tensor)),
        "pad_head_dim": sum(
            _bytes(tensor) // tensor.shape[-1] * width for tensor, width in widths if tensor.shape[-1] != width
        ),
        "sanitize_kv": sum(_bytes(tensor) for tensor in cleared),
    }
    return [(name, size) for name, size in found.items() if size]


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
