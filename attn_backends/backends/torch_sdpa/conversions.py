"""What `prepare` is going to convert for a call, from shapes and strides alone: (name, bytes written) per conversion.

Names are those of the manifests' `converts`; `sanitize_kv` is K and V with zeros at the keys that no row sees, and K
bounded where only some rows see a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attn_backends.backends.torch_sdpa.band import Band, band_of
from attn_backends.backends.torch_sdpa.layout import heads_first
from attn_backends.backends.torch_sdpa.problem import Needs, bounds_keys, route

if TYPE_CHECKING:
    import torch

    from attn_backends.call import Call

Conversion = tuple[str, int]


def conversions_of(call: Call, needs: Needs) -> list[Conversion]:
    """Every conversion of this launch that costs something or changes how the mask is said."""
    band = band_of(call)
    if band.blank:
        return []
    diagonal = route(call, band, needs)
    found = {
        "make_contiguous": sum(_bytes(t) for t in (call.q, call.k, call.v) if not needs.memory(t)),
        "expand_mask": _mask_bytes(call, band) if diagonal == "mask" else 0,
        "sanitize_kv": _sanitized_bytes(call, band, needs) if diagonal == "mask" else 0,
        **_fitting(call, band, needs),
    }
    named = [(name, size) for name, size in found.items() if size]
    return [*named, ("flip_alignment", 0)] if _flips(call, needs, diagonal) else named


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _flips(call: Call, needs: Needs, diagonal: str) -> bool:
    """Whether the diagonal asked for is none of the kernel's, and had to be said in another way."""
    hangs = call.causal or call.window_left >= 0 or call.window_right >= 0
    q, k = heads_first(call.q, call.layout), heads_first(call.k, call.layout)
    if not hangs or q.shape[2] == k.shape[2] or needs.diagonals == ("any",):
        return False
    return diagonal == "mask" or call.causal_alignment not in needs.diagonals


def _mask_bytes(call: Call, band: Band) -> int:
    """The additive mask, before it is broadcast."""
    batch, heads = 1, 1
    if call.attn_mask is not None:
        sizes = (1,) * (4 - call.attn_mask.dim()) + tuple(call.attn_mask.shape)
        batch, heads = sizes[0], sizes[1]
    if call.seq_lens is not None:
        batch = call.seq_lens.shape[0]
    return batch * heads * band.rows * band.keys * call.q.element_size()


def _sanitized_bytes(call: Call, band: Band, needs: Needs) -> int:
    k, v = heads_first(call.k, call.layout), heads_first(call.v, call.layout)
    zeroed = k.shape[3] + v.shape[3] if call.attn_mask is not None or call.seq_lens is not None else 0
    bounded = k.shape[3] if bounds_keys(call, band, needs) else 0
    return k.shape[0] * k.shape[1] * band.keys * (zeroed + bounded) * k.element_size()


def _fitting(call: Call, band: Band, needs: Needs) -> dict[str, int]:
    q, k, v = (heads_first(t, call.layout) for t in (call.q, call.k, call.v))
    size, batch = q.element_size(), q.shape[0]
    width_qk, width_v = needs.widths(q.shape[-1], v.shape[-1])
    padded = 0
    if width_qk != q.shape[-1]:
        padded += (q.shape[1] * band.rows + k.shape[1] * band.keys) * width_qk
    if width_v != v.shape[-1]:
        padded += v.shape[1] * band.keys * width_v
    repeats = not needs.grouped and q.shape[1] != k.shape[1]
    repeated = q.shape[1] * band.keys * (width_qk + width_v) if repeats else 0
    return {"pad_head_dim": batch * padded * size, "repeat_kv": batch * repeated * size}
