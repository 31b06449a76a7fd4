"""`Call` and `Grads`: the whole boundary between host and kernel, with every argument resolved.

A backend's `run(call)` reads the inputs, writes `call.out` and, where `call.lse` is not None, `call.lse`; both are
allocated by the host. `backward(call, d_out, d_lse)` returns `Grads`. Backends import this module and nothing else of
the host; it imports no torch itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from attn_backends.block_mask import BlockMask


@dataclass(kw_only=True, eq=False)
class Call:
    """One resolved call.

    B batch, Hq/Hkv query/KV heads, Sq/Sk longest lengths, D/Dv head widths, Tq/Tk packed tokens, P pages, page tokens.

    q:   [B, Sq, Hq, D] (`bshd`), [B, Hq, Sq, D] (`bhsd`) or [Tq, Hq, D] (`thd`, or paged and packed)
    k:   [B, Sk, Hkv, D], [B, Hkv, Sk, D], [Tk, Hkv, D]; paged [P, page, Hkv, D] (`NHD`) or [P, Hkv, page, D] (`HND`)
    v:   as k, with Dv
    out: as q, with Dv; any strides, memory owned by the host, contents undefined on entry
    lse: None, or float32 [B, Hq, Sq], packed [Hq, Tq]; natural log

    A field at its default is not stored in the instance, so that making one is cheap (`made_of`). Inputs are never
    modified. `saved` is the backend's own room between `run` and `backward` of one call.

    owns_out: nobody else has `out` yet: a kernel that brings memory of its own may leave it there (`hand_over`).
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor | None = None
    layout: str = "bshd"
    causal: bool = False
    causal_alignment: str = "bottom_right"
    window_left: int = -1
    window_right: int = -1
    softmax_scale: float = 1.0
    softcap: float | None = None
    sinks: torch.Tensor | None = None  # float32 [Hq]
    alibi_slopes: torch.Tensor | None = None  # float32 [Hq] or [B, Hq]
    attn_mask: torch.Tensor | None = None  # bool (True = visible) or float, broadcasts to [B, Hq, Sq, Sk]
    block_mask: BlockMask | None = None
    cu_seqlens_q: torch.Tensor | None = None  # int32 [B + 1]
    cu_seqlens_k: torch.Tensor | None = None
    max_seqlen_q: int = 0  # resolved: the longest query sequence, or an upper bound of it
    max_seqlen_k: int = 0
    seq_lens: torch.Tensor | None = None  # int32 [B]: valid keys per sequence, new tokens included
    block_table: torch.Tensor | None = None  # int32 [B, max_pages]
    kv_layout: str = "NHD"
    q_format: str = "dense"
    k_format: str = "dense"
    v_format: str = "dense"
    q_granularity: str = "none"
    k_granularity: str = "none"
    v_granularity: str = "none"
    scale_block: int | None = None
    q_descale: torch.Tensor | None = None  # float32, multiplies on read
    k_descale: torch.Tensor | None = None
    v_descale: torch.Tensor | None = None
    dropout_p: float = 0.0
    dropout_seed: int = 0
    needs_backward: bool = False
    grad_bias: bool = False
    grad_sinks: bool = False
    deterministic: bool = False
    batch_invariant: bool = False
    phase: str = "prefill"
    attn_type: str = "decoder"
    graph: str = "never"
    plan: Any = None
    workspace: torch.Tensor | None = None
    saved: Any = None
    owns_out: bool = False

    def hand_over(self, result: torch.Tensor) -> bool:
        """Make the memory that a kernel has written that of `out`, unless it is; False where it has to be copied.

        result: in the call's layout, no input's memory and nobody else's. It is taken where the host allows it and a caller
        could not tell it apart: same shape, dtype and strides (those of one entry are `out`'s own), and not from a tensor that
        wraps others, which has no memory. `out` stays a tensor of its own, which no view of another is: those must not be changed
        in place where gradients are recorded.
        """
        out = self.out
        place = result.data_ptr()  # 0: of a tensor that wraps others
        if place != 0 and place == out.data_ptr():
            return True
        if not self.owns_out or place == 0 or result.dtype != out.dtype or result.shape != out.shape:
            return False
        if result.stride() == out.stride():
            out.set_(result)  # type: ignore[call-overload]  # torch's stubs know storages alone
            return True
        if _lies_alike(result, out):
            out.set_(result.untyped_storage(), result.storage_offset(), out.shape, out.stride())
            return True
        return False

    @classmethod
    def made_of(cls, fields: dict[str, Any]) -> Call:
        """A call from a dict that it takes over: fields that are not there have their default."""
        call = cls.__new__(cls)
        call.__dict__ = fields
        return call


def _lies_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape step alike; along an axis of one entry nobody steps."""
    steps = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(mine == others for size, mine, others in steps if size > 1)


@dataclass(slots=True, kw_only=True, eq=False)
class Grads:
    """What `backward` returns: gradients shaped and typed as q, k, v, the float `attn_mask` and the sinks."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    bias: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
