"""Bugs in reading tensors: heads, widths, packed and dense lengths, strides, indices."""

# ruff: noqa: ARG001  # a mutant has the signature of its seam
from __future__ import annotations

import dataclasses
import itertools

import torch

from attn_backends.call import Call
from attn_backends.conformance.controls.places import Place, places
from attn_backends.conformance.mutants import hiding, reading, writing
from attn_backends.conformance.mutants.mutant import plant
from attn_backends.conformance.mutants.rereading import packed_strides, reread


@plant("GQA-1", "kv_head", needs=("gqa_ratio",))
def gqa_by_modulo(heads: int, kv_heads: int) -> torch.Tensor:
    """h % Hkv."""
    return torch.arange(heads) % kv_heads


@plant("GQA-1", "kv_head", needs=("gqa_ratio",))
def gqa_by_two(heads: int, kv_heads: int) -> torch.Tensor:
    """Groups of two query heads, whatever the ratio."""
    return (torch.arange(heads) // 2).clamp(max=kv_heads - 1) if heads != kv_heads else torch.arange(heads)


@plant("GQA-1", "kv_head", needs=("gqa_ratio",))
def gqa_all_read_head_zero(heads: int, kv_heads: int) -> torch.Tensor:
    """Fewer KV heads than query heads are taken for one."""
    return torch.arange(heads) if heads == kv_heads else torch.zeros(heads, dtype=torch.int64)


@plant("HEADDIM-1", "logical", needs=("head_dim_v",))
def v_in_rows_of_k(values: torch.Tensor, name: str, call: Call) -> torch.Tensor:
    """v is walked with k's row pitch: right as long as D = Dv."""
    if name != "v" or not values.numel():
        return values
    heads, tokens, width = values.shape
    at = torch.arange(tokens).unsqueeze(1) * call.k.shape[-1] + torch.arange(width)
    return values.reshape(heads, -1)[:, at % (tokens * width)]


@plant("HEADDIM-1", "stored", needs=("head_dim_v",))
def columns_beyond_the_width_of_q(call: Call, place: Place, out: torch.Tensor, lse: torch.Tensor) -> None:
    """The output is as wide as q: columns of v beyond that are zeros."""
    beyond = torch.arange(out.shape[-1]) >= call.q.shape[-1]
    writing.stored(call, place, out.masked_fill(beyond, 0.0), lse)


@plant("HEADDIM-2", "logical", needs=("head_dim",))
def last_channels_of_qk_lost(values: torch.Tensor, name: str, call: Call) -> torch.Tensor:
    """The width of q and k is rounded down to whole steps of 16."""
    width = values.shape[-1]
    lost = torch.arange(width) >= max(width // 16 * 16, min(width, 16))
    return values if name == "v" else values.masked_fill(lost, 0.0)


@plant("HEADDIM-2", "logical", needs=("head_dim_v",))
def last_channels_of_v_twice(values: torch.Tensor, name: str, call: Call) -> torch.Tensor:
    """The last tile of v's width starts 16 before its end and is written at the tile's own place."""
    width = values.shape[-1]
    if name != "v" or width % 16 == 0 or width < 16:
        return values
    tail = width % 16
    return torch.cat([values[..., : width - tail], values[..., width - 16 : width - 16 + tail]], dim=-1)


@plant("HEADDIM-2", "strided", needs=("head_dim", "strides"))
def padding_times_zero(tensor: torch.Tensor, name: str, call: Call) -> torch.Tensor:
    """Rows of k are loaded in whole tiles, and what lies behind them is multiplied by q's zeros."""
    behind = _behind_rows(tensor) if name == "k" and tensor.element_size() > 1 else None
    if behind is None:
        return tensor
    first = tensor[..., :1] + 0.0 * behind.sum(dim=-1, keepdim=True)
    return torch.cat([first, tensor[..., 1:]], dim=-1)


def _behind_rows(tensor: torch.Tensor) -> torch.Tensor | None:
    """What lies between the rows of a tensor, or None where nothing does or the last row ends its memory."""
    width, gap = tensor.shape[-1], int(tensor.stride(-2)) - tensor.shape[-1]
    if tensor.stride(-1) != 1 or gap <= 0 or not tensor.numel():
        return None
    steps = sum((size - 1) * step for size, step in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True))
    start = int(tensor.storage_offset()) + width
    if (start + steps + gap) * tensor.element_size() > tensor.untyped_storage().nbytes():
        return None
    return tensor.detach().as_strided((*tensor.shape[:-1], gap), tensor.stride(), start)


@plant("VARLEN-1", "places", needs=("varlen",))
def keys_by_the_lengths_of_queries(call: Call) -> list[Place]:
    """cu_seqlens_q is used on both sides."""
    if call.cu_seqlens_k is None:
        return places(call)
    total = call.k.shape[0]
    found = []
    for place in places(call):
        first = min(place.first_q or 0, total)
        found.append(dataclasses.replace(place, first_k=first, seq_k=min(place.seq_q, total - first)))
    return found


@plant("VARLEN-1", "diagonal", needs=("varlen", "causal"))
def diagonal_of_the_longest(call: Call, place: Place) -> int:
    """The diagonal of a packed sequence hangs on max_seqlen_q and max_seqlen_k."""
    if place.first_q is None or place.first_k is None or call.causal_alignment != "bottom_right":
        return hiding.diagonal(call, place)
    return call.max_seqlen_k - call.max_seqlen_q


@plant("VARLEN-2", "places", needs=("varlen",))
def sequences_of_no_queries_shift_the_keys(call: Call) -> list[Place]:
    """Sequences without queries are left out on the side of q, and not on the side of k."""
    found = places(call)
    if call.cu_seqlens_k is None:
        return found
    rows = [place for place in found if place.seq_q]
    return [
        dataclasses.replace(own, index=other.index, first_k=other.first_k, seq_k=other.seq_k)
        for own, other in zip(rows, found, strict=False)
    ]


@plant("VARLEN-2", "places", needs=("varlen",))
def sequences_of_no_keys_read_the_next(call: Call) -> list[Place]:
    """A sequence has at least one key: `max(1, end - start)`."""
    if call.cu_seqlens_k is None or not call.k.shape[0]:
        return places(call)
    last = call.k.shape[0] - 1
    return [
        place if place.seq_k else dataclasses.replace(place, first_k=min(place.first_k or 0, last), seq_k=1)
        for place in places(call)
    ]


@plant("VARLEN-2", "places", needs=("varlen",))
def first_empty_sequence_ends_the_call(call: Call) -> list[Place]:
    """A sequence without queries is taken for the end of the batch."""
    found = places(call)
    if call.cu_seqlens_q is None:
        return found
    return list(itertools.takewhile(lambda place: place.seq_q > 0, found))


@plant("VARLEN-3", "places", needs=("varlen",))
def longest_is_the_length(call: Call) -> list[Place]:
    """Every packed sequence has max_seqlen_k keys, as far as there are any."""
    if call.cu_seqlens_k is None:
        return places(call)
    return [
        dataclasses.replace(place, seq_k=min(call.max_seqlen_k, call.k.shape[0] - (place.first_k or 0)))
        for place in places(call)
    ]


@plant("VARLEN-3", "places", needs=("varlen",))
def last_sequence_owns_the_tail(call: Call) -> list[Place]:
    """The last sequence ends where the packed keys end."""
    found = places(call)
    if call.cu_seqlens_k is None or not found:
        return found
    return [*found[:-1], dataclasses.replace(found[-1], seq_k=call.k.shape[0] - (found[-1].first_k or 0))]


@plant("DENSELEN-1", "places", needs=("dense_lengths",))
def seq_lens_ignored(call: Call) -> list[Place]:
    """On dense tensors every key counts."""
    if call.seq_lens is None or call.block_table is not None:
        return places(call)
    tokens = call.k.shape[2 if call.layout == "bhsd" else 1]
    return [dataclasses.replace(place, seq_k=tokens) for place in places(call)]


@plant("DENSELEN-1", "places", needs=("dense_lengths",))
def length_zero_is_no_length(call: Call) -> list[Place]:
    """`seq_len or Sk`."""
    if call.seq_lens is None or call.block_table is not None:
        return places(call)
    tokens = call.k.shape[2 if call.layout == "bhsd" else 1]
    return [dataclasses.replace(place, seq_k=place.seq_k or tokens) for place in places(call)]


@plant("DENSELEN-2", "diagonal", needs=("dense_lengths", "causal"))
def diagonal_on_the_padded_length(call: Call, place: Place) -> int:
    """The diagonal ends at the last key of the tensor, not of the sequence."""
    dense = call.seq_lens is not None and call.block_table is None
    if not dense or call.causal_alignment != "bottom_right":
        return hiding.diagonal(call, place)
    return call.k.shape[2 if call.layout == "bhsd" else 1] - place.seq_q


@plant("DENSELEN-2", "diagonal", needs=("dense_lengths", "causal"))
def diagonal_on_the_longest_length(call: Call, place: Place) -> int:
    """The diagonal hangs on the longest sequence of the batch, for all of them."""
    dense = call.seq_lens is not None and call.block_table is None
    if not dense or call.causal_alignment != "bottom_right":
        return hiding.diagonal(call, place)
    return max(other.seq_k for other in places(call)) - place.seq_q


@plant("STRIDE-1", "strided", needs=("strides",))
def q_taken_for_contiguous(tensor: torch.Tensor, name: str, call: Call) -> torch.Tensor:
    """q is read as if nothing lay between its elements."""
    return reread(tensor, packed_strides(tuple(tensor.shape))) if name == "q" else tensor


@plant("STRIDE-1", "strided", needs=("strides",))
def v_by_the_strides_of_k(tensor: torch.Tensor, name: str, call: Call) -> torch.Tensor:
    """One set of strides for K and V, where their widths agree."""
    if name != "v" or call.k.shape != call.v.shape:
        return tensor
    return reread(tensor, call.k.stride())


@plant("STRIDE-1", "strided", needs=("backward",))
def d_out_by_the_strides_of_out(tensor: torch.Tensor, name: str, call: Call) -> torch.Tensor:
    """The backward reads dO with contiguous strides."""
    return reread(tensor, packed_strides(tuple(tensor.shape))) if name == "d_out" else tensor


@plant("STRIDE-2", "strided", needs=("strides",))
def heads_by_the_stride_of_one_token(tensor: torch.Tensor, name: str, call: Call) -> torch.Tensor:
    """With one token the head stride is worked out as token stride / heads."""
    if call.layout != "bshd" or name not in ("q", "d_out") or tensor.shape[1] != 1:
        return tensor
    batch, token, _head, channel = tensor.stride()
    return reread(tensor, (batch, token, token // tensor.shape[2], channel))


@plant("STRIDE-2", "strided", needs=("strides",))
def tokens_by_the_stride_of_one_sequence(tensor: torch.Tensor, name: str, call: Call) -> torch.Tensor:
    """With one sequence the token stride is worked out as sequence stride / tokens."""
    if call.layout != "bshd" or call.block_table is not None or tensor.dim() != 4 or tensor.shape[0] != 1:
        return tensor
    sequence, _token, head, channel = tensor.stride()
    return reread(tensor, (sequence, sequence // max(tensor.shape[1], 1), head, channel))


@plant("STRIDE-2", "strided", needs=("strides",))
def one_head_by_the_stride_of_a_token(tensor: torch.Tensor, name: str, call: Call) -> torch.Tensor:
    """With one KV head the token stride is taken from the head's."""
    if name not in ("k", "v") or call.layout != "bshd" or call.block_table is not None or tensor.shape[2] != 1:
        return tensor
    sequence, _token, head, channel = tensor.stride()
    return reread(tensor, (sequence, head, head, channel))


def _wraps(offset: torch.Tensor) -> torch.Tensor:
    """Where an element offset does not fit 32 bits."""
    return (offset < -(2**31)) | (offset >= 2**31)


@plant("INDEX-1", "rows_of", needs=("index_width",), hardware="memory for 2^31 elements")
def offsets_wrap_at_32_bits(tensor: torch.Tensor, name: str, call: Call, place: Place) -> torch.Tensor:
    """Offsets of rows and pages are int32; one that wraps below 0 is clamped to the first."""
    if name in ("k", "v") and call.block_table is not None:
        page = call.block_table.to(torch.int64)
        clamped = torch.where(_wraps(page * int(tensor.stride(0))), 0, page)
        return reading.call_pages(tensor, dataclasses.replace(call, block_table=clamped.to(torch.int32)), place)
    rows: torch.Tensor = reading.rows_of(tensor, name, call, place)
    token = torch.arange(rows.shape[1])
    offset = int(rows.storage_offset()) + token * int(rows.stride(1))
    return rows if not bool(_wraps(offset).any()) else rows[:, torch.where(_wraps(offset), 0, token)]
