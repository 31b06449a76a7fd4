"""Calls to compile for: every kind of feature that changes a kernel's code, as data, on tensors without memory."""

from __future__ import annotations

from typing import Any

import torch

from attn_backends.block_mask import BlockMask
from attn_backends.call import Call

_BATCH, _HEADS, _KV_HEADS, _BLOCK = 2, 16, 4, 128
_CAUSAL: dict[str, Any] = {"causal": True, "tokens": 1000}
_CAPPED: dict[str, Any] = {**_CAUSAL, "window_left": 300, "softcap": 30.0, "sinks": True}
_EVERYTHING: dict[str, Any] = {
    **_CAPPED, "alibi": True, "dropout_p": 0.1, "mask": "float", "block_mask": True, "softmax_scale": -0.1
}  # fmt: skip

# Fields of a call, and besides them: tokens (of q and of k), kv_heads, mask (dtype of attn_mask), out (its dtype),
# memory ("unaligned" rows, as a slice has them; "far" rows, whose offsets need 64 bits; "expanded" heads of k and v).
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"kv_heads": _HEADS},
    "causal": _CAUSAL,
    "window": {"tokens": 1000, "window_left": 300, "window_right": 200},
    "packed": {**_CAUSAL, "layout": "thd"},
    "lengths": {**_CAUSAL, "layout": "bhsd", "lengths": True},
    "expanded": {**_CAUSAL, "memory": "expanded"},
    "unaligned": {**_CAUSAL, "memory": "unaligned"},
    "far": {**_CAUSAL, "memory": "far"},
    "wide output": {**_CAUSAL, "out": torch.float32},
    "softcap": {**_CAUSAL, "softcap": 30.0},
    "capped": {**_CAPPED, "layout": "thd"},
    "sloped": {**_CAUSAL, "window_left": 300, "alibi": True, "layout": "thd"},
    "dropout": {**_CAUSAL, "dropout_p": 0.1},
    "bool mask": {"tokens": 1000, "mask": "bool"},
    "bias": {"tokens": 1000, "mask": "float"},
    "bias and dropout": {**_CAUSAL, "mask": "float", "dropout_p": 0.1, "layout": "thd"},
    "block mask": {"tokens": 1000, "block_mask": True, "softcap": 30.0},
    "everything": {**_EVERYTHING, "lengths": True},
    "everything packed": {**_EVERYTHING, "layout": "thd", "out": torch.float32},
    "everything unaligned": {**_EVERYTHING, "lengths": True, "memory": "unaligned"},
    "everything far": {**_EVERYTHING, "memory": "far"},
}


def call_of(variant: str, dtype: torch.dtype, width: int, width_v: int) -> Call:
    """A call on meta tensors, with a backward, of a variant; width of q and k heads, and of v heads."""
    given = dict(VARIANTS[variant])
    tokens, kv_heads = given.pop("tokens", 1024), given.pop("kv_heads", _KV_HEADS)
    memory, layout = given.pop("memory", ""), given.setdefault("layout", "bshd")
    out_dtype, mask = given.pop("out", dtype), given.pop("mask", None)
    if given.pop("alibi", False):
        given["alibi_slopes"] = _empty((_BATCH, _HEADS), torch.float32)
    if given.pop("sinks", False):
        given["sinks"] = _empty((_HEADS,), torch.float32)
        given["grad_sinks"] = True
    if given.pop("lengths", False):
        given["seq_lens"] = _empty((_BATCH,), torch.int32)
    if mask is not None:
        given["attn_mask"] = _empty((_BATCH, _HEADS, tokens, tokens), torch.bool if mask == "bool" else dtype)
    if given.pop("block_mask", False):
        blocks = _empty((_BATCH, _HEADS, *(-(-tokens // _BLOCK),) * 2), torch.bool)
        given["block_mask"] = BlockMask(blocks, _BLOCK, _empty((tokens, tokens), torch.bool))
    if layout == "thd":
        starts = _empty((_BATCH + 1,), torch.int32)
        given.update(cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=tokens, max_seqlen_k=tokens)
    return Call(
        q=_tensor(layout, tokens, _HEADS, width, dtype, memory.replace("expanded", "")),
        k=_tensor(layout, tokens, kv_heads, width, dtype, memory),
        v=_tensor(layout, tokens, kv_heads, width_v, dtype, memory),
        out=_tensor(layout, tokens, _HEADS, width_v, out_dtype, ""),
        grad_bias=mask == "float",
        needs_backward=True,
        **given,
    )


_ROOM = {"unaligned": 1, "far": 2**27}  # elements behind each head


def _tensor(layout: str, tokens: int, heads: int, width: int, dtype: torch.dtype, memory: str) -> torch.Tensor:
    room = width + _ROOM.get(memory, 0)
    if layout == "thd":
        return _empty((_BATCH * tokens, heads, room), dtype)[..., :width]
    if layout == "bhsd":
        return _empty((_BATCH, heads, tokens, room), dtype)[..., :width]
    if memory == "expanded":
        return _empty((_BATCH, tokens, 1, width), dtype).expand(-1, -1, heads, -1)
    return _empty((_BATCH, tokens, heads, room), dtype)[..., :width]


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
