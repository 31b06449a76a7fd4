"""`Problem`: one call in the form that torch's kernels take, and `prepare`, which brings it there.

`Needs` is what a kernel says about itself; `prepare` slices to the band, hides keys, repeats, pads and copies only
what those needs ask for. `route` decides from shapes alone; `conversions` asks it too, so that the two agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from attn_backends.backends.torch_sdpa import operands
from attn_backends.backends.torch_sdpa.band import Band, band_of
from attn_backends.backends.torch_sdpa.layout import heads_first
from attn_backends.backends.torch_sdpa.masking import (
    additive_mask,
    scores_may_overflow,
    with_finite_scores,
    without_empty_rows,
    without_hidden_keys,
)
from attn_backends.backends.torch_sdpa.visibility import Visibility, rows_differ, visibility_of

if TYPE_CHECKING:
    from attn_backends.call import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a kernel can take as it stands; anything else is converted by `prepare`.

    diagonals      the causal diagonals it knows: `top_left`, `bottom_right`; `any` = whatever band it is given
    window         the windows it takes on those diagonals: `none`, `left` (with causal), `two_sided`
    masks          whether it takes an additive mask; if not, its manifest must not declare what needs one
    grouped        whether it reads one KV head for several query heads
    width_multiple what head widths are padded to; `equal_widths`: K and V to the same
    vectors        reads 16 bytes at a time (else: operands in canonical memory)
    signed_scale   whether any scale is right, or only a positive one
    adds_mask      whether it hides a key by adding -inf to its score, which must then be finite
    """

    diagonals: tuple[str, ...]
    window: str = "none"
    masks: bool = True
    grouped: bool = True
    width_multiple: int = 1
    equal_widths: bool = False
    vectors: bool = False
    signed_scale: bool = False
    adds_mask: bool = True

    def widths(self, qk: int, v: int) -> tuple[int, int]:
        """The padded widths of K and V."""
        padded = operands.padded_width(qk, self.width_multiple), operands.padded_width(v, self.width_multiple)
        return (max(padded), max(padded)) if self.equal_widths else padded

    def memory(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of the call can be read where it lies."""
        return operands.is_vectorised(tensor) if self.vectors else operands.is_canonical(tensor)

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, copied if it cannot be read where it lies."""
        return operands.vectorised(tensor) if self.vectors else operands.canonical(tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Operands [B, H, rows or keys, width] and how they mask each other.

    `diagonal` is `none`, `top_left`, `bottom_right`, `any` or `mask` (then `visible` says it all, and `mask` is its additive
    form); `left`, `right` bound the window on the diagonal, None = unbounded. `sign` was moved from the scale into q.
    Blank: no row sees a key; then there are no operands.
    """

    band: Band
    diagonal: str
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    visible: Visibility | None
    mask: torch.Tensor | None
    left: int | None
    right: int | None
    scale: float
    sign: float
    ratio: int  # of repeated KV heads; 1 if the kernel groups

    @property
    def causal(self) -> bool:
        """Whether the kernel is to hide by itself what lies right of a diagonal."""
        return self.diagonal in ("top_left", "bottom_right") and self.right == 0


def route(call: Call, band: Band, needs: Needs) -> str:
    """How visibility reaches the kernel: `none`, one of its `diagonals`, or `mask`."""
    if call.attn_mask is not None or call.seq_lens is not None:
        return "mask"
    if band.left is None and band.right is None:
        return "none"
    if needs.diagonals == ("any",):
        return "any"
    if not _takes_bounds(band, needs):
        return "mask"
    return next((name for name in needs.diagonals if name in band.diagonals), "mask")


def bounds_keys(call: Call, band: Band, needs: Needs) -> bool:
    """Whether K is bounded: a mask is added to scores that may overflow, and hides a key from some rows alone."""
    may_overflow = scores_may_overflow(call.q.dtype, call.q.shape[-1], call.softmax_scale)
    return needs.adds_mask and may_overflow and rows_differ(call, band)


def _takes_bounds(band: Band, needs: Needs) -> bool:
    if band.right == 0:
        return band.left is None or needs.window != "none"
    return needs.window == "two_sided"


def prepare(call: Call, needs: Needs) -> Problem:
    """Everything a kernel needs for the call; operands that need no change are views of the call's own tensors."""
    band = band_of(call)
    diagonal = route(call, band, needs)
    q, k, v = (_placed(tensor, call.layout, needs) for tensor in (call.q, call.k, call.v))
    q = cut(q, band.first_row, band.end_row)
    k, v = cut(k, band.first_key, band.end_key), cut(v, band.first_key, band.end_key)
    visible = mask = None
    if diagonal == "mask" and not band.blank:
        if not needs.masks:
            raise ValueError(f"{band} needs a mask tensor, which this kernel does not take: the manifest over-claims")
        visible = visibility_of(call, band, k.shape[1])
        mask = additive_mask(visible, q.dtype)
        k, v = without_hidden_keys(k, visible), without_hidden_keys(v, visible)
        q = without_empty_rows(q, visible) if call.needs_backward else q
        k = with_finite_scores(k, q, call.softmax_scale) if bounds_keys(call, band, needs) else k
    sign = 1.0 if needs.signed_scale else operands.sign_of(call.softmax_scale)
    ratio = 1 if needs.grouped else q.shape[1] // k.shape[1]
    width_qk, width_v = needs.widths(q.shape[-1], v.shape[-1])
    return Problem(
        band=band,
        diagonal=diagonal,
        q=_fitted(operands.signed(q, sign), width_qk, 1, needs),
        k=_fitted(k, width_qk, ratio, needs),
        v=_fitted(v, width_v, ratio, needs),
        visible=visible,
        mask=mask,
        left=band.left,
        right=band.right,
        scale=call.softmax_scale if sign == 1 else abs(call.softmax_scale) or 1.0,
        sign=sign,
        ratio=ratio,
    )


def cut(tensor: torch.Tensor, first: int, end: int) -> torch.Tensor:
    """The sequence positions [first, end) of a [B, H, S, D] tensor; itself if that is all."""
    return tensor if first == 0 and end >= tensor.shape[2] else tensor[:, :, first:end]


def _placed(tensor: torch.Tensor, layout: str, needs: Needs) -> torch.Tensor:
    return heads_first(needs.place(tensor), layout)


def _fitted(tensor: torch.Tensor, width: int, ratio: int, needs: Needs) -> torch.Tensor:
    fitted = operands.repeat_kv(operands.pad_width(tensor, width), ratio)
    return operands.vectorised(fitted) if needs.vectors else fitted
