"""What torch's CUDA attention kernels are asked and answer, in plain operations, so that their adapters run on a CPU.

Each stand-in has its kernel's own signature, diagonal, widths and quirks, and refuses what the kernel refuses. What the
kernels themselves make of it is for the runs on a GPU. Shapes are those of the kernels: [B, S, H, D], or [B, H, S, D] for
cuDNN.
"""

from __future__ import annotations

import torch

HALVES = (torch.float16, torch.bfloat16)


def _attend(q, k, v, scale, visible, bias=None):
    """out and lse of [B, H, S, D] operands in float32; a row without keys is whatever the formula makes of it."""
    ratio = q.shape[1] // k.shape[1]
    k, v = (x.float().repeat_interleave(ratio, 1) for x in (k, v))
    scores = q.float() @ k.mT * scale
    if bias is not None:
        scores = scores + bias.float()
    scores = scores.masked_fill(~visible, -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def _gradients(attend, d_out, *operands):
    leaves = [x.detach().requires_grad_() for x in operands]
    with torch.enable_grad():
        out, _lse = attend(*leaves)
        return torch.autograd.grad(out, leaves, d_out.to(out.dtype))


def _must(condition, what):
    if not condition:
        raise RuntimeError(what)


def _distance(rows, keys, offset):
    return torch.arange(keys)[None, :] - torch.arange(rows)[:, None] - offset


def _vectors(*tensors):
    for x in tensors:
        _must(x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and x.shape[-1] % 8 == 0, "rows of 16 bytes")


def _flash(causal, scale, left, right):
    """FlashAttention-2: bottom-right, and a bound of at least as many tokens as there are keys is none."""

    def attend(q, k, v):
        rows, keys = q.shape[1], k.shape[1]
        low, high = (-1 if bound >= keys else bound for bound in (left, right))
        high = 0 if causal and rows > 1 else high
        distance = _distance(rows, keys, keys - rows)
        visible = torch.ones_like(distance, dtype=torch.bool)
        if low >= 0:
            visible &= distance >= -low
        if high >= 0:
            visible &= distance <= high
        out, lse = _attend(*(x.transpose(1, 2) for x in (q, k, v)), scale, visible)
        return out.transpose(1, 2).to(q.dtype), lse

    return attend


def _check_flash(q, k, v):
    _must(q.dtype in HALVES and q.dtype == k.dtype == v.dtype, "FlashAttention only supports fp16 and bf16")
    _must(q.shape[-1] == k.shape[-1] == v.shape[-1] <= 256, "widths alike, and at most 256")
    _vectors(q, k, v)


def flash_forward(
    q, k, v, cum_q, cum_k, max_q, max_k, dropout, causal, debug, *, scale, window_size_left, window_size_right
):
    _check_flash(q, k, v)
    _must((max_q, max_k, dropout) == (q.shape[1], k.shape[1], 0.0), "lengths")
    out, lse = _flash(causal, scale, window_size_left, window_size_right)(q, k, v)
    return out, lse, torch.zeros(2), torch.zeros(()), torch.zeros(())


def flash_backward(
    d_out, q, k, v, out, lse, cum_q, cum_k, max_q, max_k, dropout, causal, state, unused, *, scale, window_size_left,
    window_size_right,
):  # fmt: skip
    _must(d_out.dtype == q.dtype == out.dtype, "dO in q's dtype")
    _vectors(d_out)
    return _gradients(_flash(causal, scale, window_size_left, window_size_right), d_out, q, k, v)


def _efficient(bias, kind, scale, window):
    """The memory-efficient kernel: top-left (1), bottom-right (2) or no diagonal (0), a window under it, a mask."""

    def attend(q, k, v):
        rows, keys = q.shape[1], k.shape[1]
        distance = _distance(rows, keys, keys - rows if kind == 2 else 0)
        visible = distance <= 0 if kind else torch.ones_like(distance, dtype=torch.bool)
        if window is not None:
            visible &= distance > -window
        out, lse = _attend(*(x.transpose(1, 2) for x in (q, k, v)), scale, visible, bias)
        return out.transpose(1, 2).to(q.dtype), lse

    return attend


def efficient_forward(
    q, k, v, bias, cum_q, cum_k, max_q, max_k, dropout, kind, wants_lse, *, scale, window_size
):  # fmt: skip
    _must(q.dtype == k.dtype == v.dtype and (bias is None or bias.dtype == q.dtype), "one dtype")
    _must(q.shape[2] == k.shape[2] == v.shape[2], "as many heads")
    _must(bias is None or bias.shape == (q.shape[0], q.shape[2], q.shape[1], k.shape[1]), "a mask of every score")
    _vectors(q, k, v)
    out, lse = _efficient(bias, kind, scale, window_size)(q, k, v)
    padded = torch.nn.functional.pad(lse, (0, -lse.shape[-1] % 32), value=torch.inf)
    return out, padded if wants_lse else None, torch.zeros(()), torch.zeros(()), q.shape[1], k.shape[1]


def efficient_backward(
    d_out, q, k, v, bias, out, cum_q, cum_k, max_q, max_k, lse, dropout, seed, offset, kind, wants_bias, *, scale,
    num_splits_key, window_size,
):  # fmt: skip
    _must(d_out.dtype == q.dtype == out.dtype and lse.shape[-1] % 32 == 0, "dO in q's dtype, the LSE padded")
    return (*_gradients(_efficient(bias, kind, scale, window_size), d_out, q, k, v), None)


def _cudnn(causal, scale):
    """cuDNN: top-left."""

    def attend(q, k, v):
        distance = _distance(q.shape[2], k.shape[2], 0)
        visible = distance <= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
        out, lse = _attend(q, k, v, scale, visible)
        return out.to(q.dtype), lse

    return attend


def cudnn_forward(q, k, v, bias, wants_lse, dropout, causal, debug, *, scale):
    _must(q.dtype in HALVES and q.dtype == k.dtype == v.dtype and bias is None, "halves, no mask")
    _must(q.shape[-1] == v.shape[-1] <= 256, "widths alike, and at most 256")
    _vectors(q, k, v)
    out, lse = _cudnn(causal, scale)(q, k, v)
    one = torch.zeros(())
    return out, lse.unsqueeze(-1) if wants_lse else None, None, None, q.shape[2], k.shape[2], one, one, one


def cudnn_backward(
    d_out, q, k, v, out, lse, seed, offset, bias, cum_q, cum_k, max_q, max_k, dropout, causal, *, scale
):  # fmt: skip
    _must(d_out.dtype == q.dtype == out.dtype and d_out.stride() == out.stride(), "dO as out")
    _must(q.shape[2] > 1 or k.shape[2] > 1, "no gradients for one query on one key")
    return _gradients(_cudnn(causal, scale), d_out, q, k, v)


STAND_INS = {
    "sdpa_flash": (flash_forward, flash_backward),
    "sdpa_mem_efficient": (efficient_forward, efficient_backward),
    "sdpa_cudnn": (cudnn_forward, cudnn_backward),
}
