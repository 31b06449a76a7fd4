"""Calls to compile for: every kind of feature that changes a kernel's code, as data, on tensors without memory."""

from __future__ import annotations

from typing import Any

import torch

from attn_backends.block_mask import BlockMask
from attn_backends.call import Call

_BATCH, _HEADS, _KV_HEADS, _BLOCK = 2, 16, 4, 128
_CAUSAL: dict[str, Any] = {"causal": True, "tokens": 1000}
_EVERYTHING: dict[str, Any] = {
    **_CAUSAL, "window_left": 300, "window_right": 200, "softcap": 30.0, "alibi": True, "sinks": True, "dropout_p": 0.1,
    "mask": "float", "block_mask": True, "softmax_scale": -0.1,
}  # fmt: skip

# Fields of a call, and besides them: tokens (of q and of k), kv_heads, mask (dtype of attn_mask), out (its dtype),
# memory ("unaligned" rows, as a slice has them; "far" rows, whose offsets need 64 bits).
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"kv_heads": _HEADS},
    "causal": _CAUSAL,
    "window": {"tokens": 1000, "window_left": 300, "window_right": 200},
    "packed": {**_CAUSAL, "layout": "thd"},
    "lengths": {**_CAUSAL, "layout": "bhsd", "lengths": True},
    "unaligned": {**_CAUSAL, "memory": "unaligned"},
    "far": {**_CAUSAL, "memory": "far"},
    "wide output": {**_CAUSAL, "out": torch.float32},
    "softcap": {**_CAUSAL, "softcap": 30.0},
    "sinks": {**_CAUSAL, "sinks": True},
    "alibi": {**_CAUSAL, "alibi": True},
    "dropout": {**_CAUSAL, "dropout_p": 0.1},
    "bool mask": {"tokens": 1000, "mask": "bool"},
    "bias": {"tokens": 1000, "mask": "float"},
    "block mask": {"tokens": 1000, "block_mask": True},
    "everything": _EVERYTHING,
    "everything packed": {**_EVERYTHING, "layout": "thd", "out": torch.float32},
    "everything unaligned": {**_EVERYTHING, "lengths": True, "memory": "unaligned"},
    "everything far": {**_EVERYTHING, "memory": "far"},
}


def call_of(features: dict[str, Any], dtype: torch.dtype, width: int, width_v: int) -> Call:
    """A call on meta tensors with these features."""
    given = dict(features)
    tokens, kv_heads = given.pop("tokens", 1024), given.pop("kv_heads", _KV_HEADS)
    memory, layout = given.pop("memory", ""), given.setdefault("layout", "bshd")
    out_dtype, mask = given.pop("out", dtype), given.pop("mask", None)
    if given.pop("alibi", False):
        given["alibi_slopes"] = _empty((_BATCH, _HEADS), torch.float32)
    if given.pop("sinks", False):
        given["sinks"] = _empty((_HEADS,), torch.float32)
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
    q, k, v, out = (
        _tensor(layout, tokens, heads, columns, kind, memory)
        for heads, columns, kind in (
            (_HEADS, width, dtype), (kv_heads, width, dtype), (kv_heads, width_v, dtype), (_HEADS, width_v, out_dtype)
        )
    )  # fmt: skip
    return Call(q=q, k=k, v=v, out=out, grad_bias=mask == "float", needs_backward=True, **given)


def _tensor(layout: str, tokens: int, heads: int, width: int, dtype: torch.dtype, memory: str) -> torch.Tensor:
    room = {"": width, "unaligned": width + 1, "far": 2**27}[memory]
    shape = {
        "bshd": (_BATCH, tokens, heads, room), "bhsd": (_BATCH, heads, tokens, room), "thd": (_BATCH * tokens, heads, room)
    }[layout]  # fmt: skip
    return _empty(shape, dtype)[..., :width]


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
