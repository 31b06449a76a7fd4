"""In-process backends that are wrong on purpose, each in one way, around the reference kernel; for tests of checks and engine.

`register()` puts them all into this process; workers call it by name.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time

import torch

import attn_backends
from attn_backends.registry.registry import default_registry

BOX = {
    "device": ["cpu"], "dtype": ["float16", "bfloat16", "float32"], "kv_format": ["dense", "scaled-int8"],
    "scale_granularity": ["none", "per_tensor", "per_head"], "layout": ["bshd", "thd"], "phase": "any",
    "attn_type": ["decoder"], "head_dim": {"min": 1, "max": 128}, "head_dim_v": {"min": 1, "max": 128},
    "gqa_ratio": "any", "seq_len": "any", "causal": [False, True], "causal_alignment": ["bottom_right", "top_left"],
    "window": ["none", "left", "two_sided"], "mask": ["none", "bool"], "bias": [False, True],
    "scale": ["default", "custom"], "softcap": [False, True], "sinks": [False, True], "alibi": [False, True],
    "lse": [False, True], "backward": [False, True], "deterministic": [False, True], "batch_invariant": [False, True],
    "varlen": [False, True], "dense_lengths": [False, True],
    "nan_safe": [False, True], "strides": "any", "index_width": [32],
}  # fmt: skip
_NOT_PAGED = ("backward", "dense_lengths")
PAGED = {name: value for name, value in BOX.items() if name not in _NOT_PAGED} | {
    "kv_layout": ["NHD", "HND"],
    "page_size": [16],
}
BOX_DENSE_ONLY = {**BOX, "kv_format": ["dense"], "scale_granularity": ["none"]}
NARROW = {name: value for name, value in BOX.items() if name not in ("softcap", "window", "alibi")}


def eager():
    return default_registry().load("eager")


def right(call):
    eager().run(call)


def lse_base_2(call):
    eager().run(call)
    if call.lse is not None:
        call.lse.mul_(1.4426950408889634)


def wide_window(call):
    left = call.window_left + 1 if call.window_left >= 0 else -1
    eager().run(dataclasses.replace(call, window_left=left))


def no_softcap(call):
    eager().run(dataclasses.replace(call, softcap=None))


def no_mask(call):
    eager().run(dataclasses.replace(call, attn_mask=None))


def lowest_hides(call):
    mask = call.attn_mask
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.masked_fill(mask < -1e4, -torch.inf)
    eager().run(dataclasses.replace(call, attn_mask=mask))


def borrowing(call):
    """Calls another backend in the middle of its own work."""
    attn_backends.attention(call.q, call.q, call.q, backend="eager", layout=call.layout)
    eager().run(call)


def no_scale(call):
    eager().run(dataclasses.replace(call, softmax_scale=call.q.shape[-1] ** -0.5))


def modulo_heads(call):
    heads = torch.arange(call.q.shape[-2]) % call.k.shape[-2]
    if call.block_table is None and call.k.element_size() > 1:
        call = dataclasses.replace(call, k=call.k[..., heads, :], v=call.v[..., heads, :])
    eager().run(call)


def top_left_always(call):
    eager().run(dataclasses.replace(call, causal_alignment="top_left"))


def scribbling(call):
    eager().run(call)
    call.q.add_(1)


def one_buffer(call):
    """Hands out a view of an input instead of the host's memory."""
    eager().run(call)
    call.out = call.v.view(torch.uint8).flatten().view(call.v.dtype)[:1].expand(call.out.shape)


def past_the_end(call):
    """Adds what lies behind each sequence, times nothing: NaN there gets through."""
    eager().run(call)
    if call.seq_lens is not None and call.block_table is None and call.k.shape[1]:
        call.out += 0 * call.v[:, -1:, :1, :1].to(call.out.dtype)


def unwritten(call):
    """Leaves rows that see nothing as they were."""
    kept = call.out.clone()
    eager().run(call)
    call.out.copy_(torch.where((call.out == 0).all(dim=-1, keepdim=True), kept, call.out))


def noisy_backward(call, d_out, d_lse):
    grads = eager().backward(call, d_out, d_lse)
    grads.k.mul_(1.0 + 1e-3 * torch.rand(()))
    return grads


def backward_without_lse(call, d_out, d_lse):
    return eager().backward(call, d_out, None)


def batch_dependent(call):
    eager().run(call)
    call.out.mul_(1.0 + 2.0**-7 * (call.out.shape[0] > 8))


def raising(call):
    if call.softcap is not None:
        raise NotImplementedError("no softcap here")
    eager().run(call)


def moody(call):
    """Prints megabytes; aborts at a softcap of 3, leaves the process at 5, hangs at 7."""
    for stream in (1, 2):
        os.write(stream, b"x" * 2_000_000)
    print("y" * 2_000_000, flush=True)
    if call.softcap == 3.0:
        os.abort()
    if call.softcap == 5.0:
        sys.exit(3)
    if call.softcap == 7.0:
        time.sleep(3600)
    eager().run(call)


FORWARD = {
    function.__name__: function
    for function in (right, lse_base_2, wide_window, no_softcap, no_mask, lowest_hides, borrowing, no_scale, modulo_heads,
                     top_left_always, scribbling, one_buffer, past_the_end, unwritten, batch_dependent, raising, moody)
}  # fmt: skip
BACKWARD = {"noisy_backward": noisy_backward, "backward_without_lse": backward_without_lse}


def register():
    """Put every planted backend into the process's registry."""
    known = default_registry().snapshot().names()
    for name, run in {**FORWARD, **dict.fromkeys(BACKWARD, right), "modest": right}.items():
        if f"planted_{name}" in known:
            continue
        boxes = [NARROW] if name == "modest" else [BOX_DENSE_ONLY, {**BOX, "backward": [False]}, PAGED]
        backward = BACKWARD.get(name, lambda call, d_out, d_lse: eager().backward(call, d_out, d_lse))
        manifest = {"name": f"planted_{name}", "version": "0.1.0", "capability": boxes}
        attn_backends.register(manifest, run, backward=backward)


def unregister():
    for name in default_registry().snapshot().names():
        if name.startswith("planted_"):
            attn_backends.unregister(name)
