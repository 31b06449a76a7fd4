"""A call as the kernel takes it: numpy views in one order of dims, features as numbers, lengths on the host."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from attn_backends.backends.numba_cpu.flags import (
    BFLOAT16,
    BIASED,
    BLOCK_K,
    BLOCK_Q,
    BLOCKED,
    BOTTOM_RIGHT,
    CAP,
    CAPPED,
    DENSE,
    FLOAT16,
    HALVES,
    INNER,
    INNER_SCALE,
    LEFT,
    MASKED,
    NUMBERS,
    PAGE,
    PAGED,
    RIGHT,
    SCALE,
    SLOPED,
    SUNK,
)
from attn_backends.backends.numba_cpu.tasks import Span
from attn_backends.block_mask import as_four_dims

if TYPE_CHECKING:
    from attn_backends.call import Call

Array = Any  # of numpy; numba looks at dtype and dims, not at Python's types

_HALVES = {torch.float32: DENSE, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16}
_LARGEST = 3.4028234663852886e38  # of float32
_SMALLEST = 1.1754943508222875e-38


class Arrays(NamedTuple):
    """q, k, v, out [entries, heads, tokens, width]; lse [entries, heads, tokens]; table [sequences, pages]."""

    q: Array
    k: Array
    v: Array
    out: Array
    lse: Array
    table: Array


def arrays_of(call: Call, out: torch.Tensor, lse: torch.Tensor) -> Arrays:
    """Views; entries are sequences, pages, or one for all packed tokens."""
    paged = call.block_table is not None
    keys = _pages if paged else _dense
    layout = call.kv_layout if paged else call.layout
    return Arrays(
        q=_dense(call.q, call.layout),
        k=keys(call.k, layout),
        v=keys(call.v, layout),
        out=_dense(out, call.layout),
        lse=(lse if lse.dim() == 3 else lse.unsqueeze(0)).numpy(),
        table=np.zeros((1, 1), np.int32) if call.block_table is None else call.block_table.numpy(),
    )


def _dense(tensor: torch.Tensor, layout: str) -> Array:
    if layout == "thd":
        tensor = tensor.unsqueeze(0)
    return _stored(tensor if layout == "bhsd" else tensor.transpose(1, 2))


def _pages(tensor: torch.Tensor, layout: str) -> Array:
    return _stored(tensor if layout == "HND" else tensor.transpose(1, 2))


def _stored(tensor: torch.Tensor) -> Array:
    """The same memory as numpy sees it; 16 bits as whole numbers."""
    tensor = tensor.detach()
    return (tensor.view(torch.uint16) if tensor.element_size() == 2 else tensor).numpy()


def spans_of(call: Call) -> list[Span]:
    """Where every sequence lies."""
    token = 2 if call.layout == "bhsd" else 1
    starts_q = None if call.cu_seqlens_q is None else call.cu_seqlens_q.tolist()
    packed_k = call.cu_seqlens_k is not None and call.block_table is None
    starts_k = call.cu_seqlens_k.tolist() if packed_k and call.cu_seqlens_k is not None else None
    batch = call.q.shape[0] if starts_q is None else len(starts_q) - 1
    lengths_q = [call.q.shape[token]] * batch if starts_q is None else [b - a for a, b in pairwise(starts_q)]
    if starts_k is not None:
        lengths_k = [b - a for a, b in pairwise(starts_k)]
    else:
        lengths_k = [call.k.shape[token]] * batch if call.seq_lens is None else call.seq_lens.tolist()
    return [
        Span(
            entry_q=b if starts_q is None else 0, first_q=0 if starts_q is None else starts_q[b], seq_q=lengths_q[b],
            entry_k=b if starts_k is None else 0, first_k=0 if starts_k is None else starts_k[b], seq_k=lengths_k[b],
        )
        for b in range(batch)
    ]  # fmt: skip


def band_of(call: Call) -> tuple[int, int, bool]:
    """(left, right, bottom_right) of causal and windows together; -1 = unbounded."""
    right = call.window_right
    if call.causal:
        right = 0
    return call.window_left, right, call.causal_alignment == "bottom_right"


def asked_of(call: Call) -> Array:
    """The features as whole numbers, in the places that flags.py names."""
    left, right, bottom_right = band_of(call)
    block = call.block_mask
    biased = call.attn_mask is not None and call.attn_mask.is_floating_point()
    token = 1 if call.kv_layout == "NHD" else 2
    asked = np.zeros(NUMBERS, np.int64)
    asked[HALVES], asked[PAGED], asked[BOTTOM_RIGHT] = _HALVES[call.q.dtype], call.block_table is not None, bottom_right
    asked[LEFT], asked[RIGHT] = left, right
    asked[BIASED], asked[MASKED] = biased, call.attn_mask is not None and not biased
    asked[BLOCKED], asked[INNER] = block is not None, block is not None and block.mask is not None
    asked[BLOCK_Q], asked[BLOCK_K] = (1, 1) if block is None else (block.block_q, block.block_k)
    asked[SLOPED], asked[SUNK] = call.alibi_slopes is not None, call.sinks is not None
    asked[CAPPED] = call.softcap is not None and call.softcap < _LARGEST
    asked[PAGE] = 1 if call.block_table is None else call.k.shape[token]
    return asked


def numbers_of(call: Call) -> Array:
    """Scale and softcap in float32. A cap below its range is its least number, one above is none."""
    cap = 1.0 if call.softcap is None else min(max(call.softcap, _SMALLEST), _LARGEST)
    numbers = np.zeros(3, np.float32)
    with np.errstate(over="ignore"):
        numbers[SCALE], numbers[CAP] = call.softmax_scale, cap
        numbers[INNER_SCALE] = max(-_LARGEST, min(call.softmax_scale / cap, _LARGEST))
    return numbers


_NO_BYTES = np.zeros((1, 1, 1, 1), np.uint8)
_NO_FLOATS = np.zeros((1, 1, 1, 1), np.float32)
_NO_SLOPES, _NO_SINKS = np.zeros((1, 1), np.float32), np.zeros(1, np.float32)


def masks_of(call: Call) -> tuple[Array, ...]:
    """bias, mask, blocks, inner as [sequences, heads, queries, keys], slopes [sequences, heads], sinks [heads].

    What broadcasts has stride 0. What the call lacks is never read: one number, its strides 0 as well.
    """
    sequences, heads, queries, keys = _extent(call)
    everything = (sequences, heads, queries, keys)
    bias, mask, blocks, inner = _NO_FLOATS, _NO_BYTES, _NO_BYTES, _NO_BYTES
    if call.attn_mask is not None:
        dense = as_four_dims(call.attn_mask)
        if dense.dtype == torch.bool:
            mask = _bytes(dense)
        else:
            bias = dense.detach().float().numpy()
    block = call.block_mask
    if block is not None:
        blocks = _bytes(block.blocks)
        inner = _NO_BYTES if block.mask is None else _bytes(as_four_dims(block.mask))
    rows = (sequences, heads, *blocks.shape[2:]) if block is not None else everything
    slopes, sinks = _NO_SLOPES, _NO_SINKS
    if call.alibi_slopes is not None:
        slopes = call.alibi_slopes.detach().expand(sequences, heads).numpy()
    if call.sinks is not None:
        sinks = call.sinks.detach().numpy()
    return (
        _spread(bias, everything), _spread(mask, everything), _spread(blocks, rows), _spread(inner, everything),
        slopes, sinks,
    )  # fmt: skip


def _extent(call: Call) -> tuple[int, int, int, int]:
    """Sequences, query heads, longest queries and keys of the call's masks."""
    token = 2 if call.layout == "bhsd" else 1
    head = 1 if call.layout in ("bhsd", "thd") else 2
    packed_q = call.cu_seqlens_q is not None
    sequences = call.cu_seqlens_q.shape[0] - 1 if call.cu_seqlens_q is not None else call.q.shape[0]
    queries = call.max_seqlen_q if packed_q else call.q.shape[token]
    if call.block_table is not None or call.cu_seqlens_k is not None:
        keys = call.max_seqlen_k
    else:
        keys = call.k.shape[token]
    return sequences, call.q.shape[head], queries, keys


def _bytes(mask: torch.Tensor) -> Array:
    return mask.view(torch.uint8).numpy()


def _spread(array: Array, shape: tuple[int, ...]) -> Array:
    """The array over `shape`, with stride 0 where it has one entry for all; what is larger stays."""
    steps = [0 if size == 1 else step for size, step in zip(array.shape, array.strides, strict=True)]
    sizes = [want if size == 1 else size for size, want in zip(array.shape, shape, strict=True)]
    return np.lib.stride_tricks.as_strided(array, sizes, steps)
