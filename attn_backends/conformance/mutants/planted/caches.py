"""Bugs in paged caches and quantised tensors."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from attn_backends.call import Call
from attn_backends.conformance.controls.places import Place, indexed, places
from attn_backends.conformance.mutants import reading
from attn_backends.conformance.mutants.mutant import plant
from attn_backends.conformance.mutants.rereading import reread

Maybe = torch.Tensor | None


def _cells(cache: torch.Tensor, call: Call) -> torch.Tensor:
    """[P, page, H, W]."""
    return cache if call.kv_layout == "NHD" else cache.movedim(1, 2)


def _pages(call: Call, place: Place) -> torch.Tensor:
    """int64 pages of one sequence's table, all of its columns."""
    if call.block_table is None:
        raise ValueError("a call without block_table has no pages")
    return call.block_table[place.index].to(torch.int64)


def _stored(tensor: torch.Tensor, name: str, call: Call, place: Place) -> Maybe:
    """What is not read from pages, or None."""
    paged = name in ("k", "v") and call.block_table is not None
    rows: torch.Tensor | None = None if paged else reading.rows_of(tensor, name, call, place)
    return rows


@plant("PAGED-1", "rows_of", needs=("page_size",))
def pages_in_one_run(tensor: torch.Tensor, name: str, call: Call, place: Place) -> torch.Tensor:
    """The first page is looked up and the others are taken to follow it."""
    rows = _stored(tensor, name, call, place)
    if rows is not None:
        return rows
    cells, pages, token = _cells(tensor, call), _pages(call, place), torch.arange(place.seq_k)
    page = (pages[:1] + token // cells.shape[1]) % cells.shape[0] if place.seq_k else token
    return indexed(cells, page, token % cells.shape[1]).movedim(0, 1)


@plant("PAGED-1", "rows_of", needs=("page_size",))
def pages_of_sixteen(tensor: torch.Tensor, name: str, call: Call, place: Place) -> torch.Tensor:
    """The page size is 16, whatever the cache says."""
    rows = _stored(tensor, name, call, place)
    if rows is not None:
        return rows
    cells, pages, token = _cells(tensor, call), _pages(call, place), torch.arange(place.seq_k)
    page = pages[(token // 16).clamp(max=len(pages) - 1)].clamp(0, cells.shape[0] - 1)
    return indexed(cells, page, (token % 16) % cells.shape[1]).movedim(0, 1)


@plant("PAGED-1", "rows_of", needs=("page_size",))
def table_of_sequence_zero(tensor: torch.Tensor, name: str, call: Call, place: Place) -> torch.Tensor:
    """The batch index into the table is left at 0."""
    rows = _stored(tensor, name, call, place)
    if rows is not None:
        return rows
    cells, token = _cells(tensor, call), torch.arange(place.seq_k)
    pages = _pages(call, dataclasses.replace(place, index=0))
    page = pages[token // cells.shape[1]].clamp(0, cells.shape[0] - 1)
    return indexed(cells, page, token % cells.shape[1]).movedim(0, 1)


@plant("PAGED-2", "places", needs=("page_size",))
def one_key_too_many(call: Call) -> list[Place]:
    """The new token is counted once more than seq_lens counts it, where the table has room."""
    found = places(call)
    if call.block_table is None:
        return found
    room = call.block_table.shape[1] * call.k.shape[1 if call.kv_layout == "NHD" else 2]
    return [
        dataclasses.replace(place, seq_k=place.seq_k + 1) if _readable(call, place.seq_k + 1, place, room) else place
        for place in found
    ]


def _pages_used(call: Call, tokens: int, place: Place) -> torch.Tensor:
    size = call.k.shape[1 if call.kv_layout == "NHD" else 2]
    return _pages(call, place)[: -(-tokens // size)]


def _readable(call: Call, tokens: int, place: Place, room: int) -> bool:
    used = _pages_used(call, tokens, place)
    return tokens <= room and bool(((used >= 0) & (used < call.k.shape[0])).all())


@plant("PAGED-2", "places", needs=("page_size",))
def table_read_past_the_end(call: Call) -> list[Place]:
    """The length is that of the table: every entry that names a page is followed."""
    found = places(call)
    if call.block_table is None:
        return found
    size = call.k.shape[1 if call.kv_layout == "NHD" else 2]
    room = call.block_table.shape[1] * size
    longer = []
    for place in found:
        tokens = [n for n in range(room, place.seq_k, -size) if _readable(call, n, place, room)]
        longer.append(dataclasses.replace(place, seq_k=tokens[0] if tokens else place.seq_k))
    return longer


@plant("PAGED-2", "places", needs=("page_size",))
def last_partial_page_skipped(call: Call) -> list[Place]:
    """seq_len // page_size pages."""
    if call.block_table is None:
        return places(call)
    size = call.k.shape[1 if call.kv_layout == "NHD" else 2]
    return [dataclasses.replace(place, seq_k=place.seq_k // size * size) for place in places(call)]


@plant("PAGED-3", "rows_of", needs=("kv_layout",))
def hnd_read_as_nhd(tensor: torch.Tensor, name: str, call: Call, place: Place) -> torch.Tensor:
    """The two middle dims of a cache are taken in the order of NHD, whatever kv_layout says."""
    rows = _stored(tensor, name, call, place)
    if rows is not None:
        return rows
    cells, token = _cells(tensor, call), torch.arange(place.seq_k)
    if call.kv_layout == "HND":
        codes = cells if cells.element_size() > 1 else cells.view(torch.uint8)
        cells = codes.movedim(1, 2).reshape(codes.shape).view(tensor.dtype)
    return indexed(cells, _pages(call, place)[token // cells.shape[1]], token % cells.shape[1]).movedim(0, 1)


@plant("PAGED-3", "rows_of", needs=("kv_layout",))
def v_pages_by_the_strides_of_k(tensor: torch.Tensor, name: str, call: Call, place: Place) -> torch.Tensor:
    """One set of strides for both HND pools, where their widths agree."""
    alike = call.block_table is not None and call.kv_layout == "HND" and call.k.shape == call.v.shape
    rows: torch.Tensor = reading.rows_of(
        reread(tensor, call.k.stride()) if alike and name == "v" else tensor, name, call, place
    )
    return rows


@plant("PAGED-4", "places", needs=("page_size", "varlen"))
def queries_in_equal_parts(call: Call) -> list[Place]:
    """Packed queries of a paged call are taken to be max_seqlen_q per sequence, as in plain decode."""
    found = places(call)
    if call.block_table is None or call.cu_seqlens_q is None:
        return found
    total = call.q.shape[0]
    firsts = [min(place.index * call.max_seqlen_q, total) for place in found]
    return [
        dataclasses.replace(place, first_q=first, seq_q=min(call.max_seqlen_q, total - first))
        for place, first in zip(found, firsts, strict=True)
    ]


@plant("PAGED-4", "places", needs=("page_size", "varlen"))
def sequences_of_no_queries_shift_the_table(call: Call) -> list[Place]:
    """Sequences without queries are left out on the side of q, and not in the table and the lengths."""
    found = places(call)
    if call.block_table is None or call.cu_seqlens_q is None:
        return found
    rows = [place for place in found if place.seq_q]
    return [
        dataclasses.replace(own, index=other.index, seq_k=other.seq_k) for own, other in zip(rows, found, strict=False)
    ]


@plant("QUANT-1", "scale_of", needs=("kv_format",))
def k_descale_dropped(name: str, call: Call, place: Place, heads: int) -> Maybe:
    """K's codes are used as they are."""
    return None if name == "k" else reading.scale_of(name, call, place, heads)


@plant("QUANT-1", "scale_of", needs=("kv_format",))
def v_descale_divides(name: str, call: Call, place: Place, heads: int) -> Maybe:
    """V's codes are divided by their scale."""
    scale = reading.scale_of(name, call, place, heads)
    return scale if name != "v" or scale is None else 1.0 / scale


@plant("QUANT-1", "rows_of", needs=("kv_format",))
def e5m2_read_as_e4m3(tensor: torch.Tensor, name: str, call: Call, place: Place) -> torch.Tensor:
    """One-byte floats are all e4m3."""
    rows: torch.Tensor = reading.rows_of(tensor, name, call, place)
    return rows.view(torch.float8_e4m3fn) if rows.dtype == torch.float8_e5m2 else rows


@plant("QUANT-2", "scale_of", needs=("scale_granularity",))
def scale_blocks_of_sixteen(name: str, call: Call, place: Place, heads: int) -> Maybe:
    """A block of scales is 16 keys, the kernel's tile, whatever scale_block says."""
    scale = getattr(call, f"{name}_descale")
    if scale is None or getattr(call, f"{name}_granularity") != "block":
        return reading.scale_of(name, call, place, heads)
    further = scale[..., -1:].expand(*scale.shape[:-1], place.seq_k)  # what a kernel would find behind the last one
    changes: dict[str, Any] = {f"{name}_descale": torch.cat([scale, further], dim=-1), "scale_block": 16}
    return reading.scale_of(name, dataclasses.replace(call, **changes), place, heads)


@plant("QUANT-2", "scale_of", needs=("scale_granularity",))
def scale_of_the_first_channel(name: str, call: Call, place: Place, heads: int) -> Maybe:
    """Scales by channel are read as scales by head."""
    scale = reading.scale_of(name, call, place, heads)
    return None if scale is None else scale[..., :1]


@plant("QUANT-2", "scale_of", needs=("scale_granularity",))
def scale_of_the_first_token(name: str, call: Call, place: Place, heads: int) -> Maybe:
    """Scales by token or block are read once per sequence."""
    scale = reading.scale_of(name, call, place, heads)
    return None if scale is None else scale[:, :1]


@plant("QUANT-3", "scale_of", needs=("kv_format",))
def v_by_the_descale_of_k(name: str, call: Call, place: Place, heads: int) -> Maybe:
    """One scale for K and V, where their widths agree."""
    both = call.k_descale is not None and call.v_descale is not None and call.k.shape == call.v.shape
    return reading.scale_of("k" if name == "v" and both else name, call, place, heads)


@plant("QUANT-3", "rows_of", needs=("kv_format",))
def v_in_the_format_of_k(tensor: torch.Tensor, name: str, call: Call, place: Place) -> torch.Tensor:
    """V's bytes are read in K's format."""
    rows: torch.Tensor = reading.rows_of(tensor, name, call, place)
    return rows.view(call.k.dtype) if name == "v" and call.k.element_size() == rows.element_size() == 1 else rows


@plant("QUANT-3", "scale_of", needs=("scale_granularity",))
def v_in_the_granularity_of_k(name: str, call: Call, place: Place, heads: int) -> Maybe:
    """V's scales are taken to be spread as K's, and where that does not fit, one serves all."""
    apart = name == "v" and call.k_descale is not None and call.v_granularity != call.k_granularity
    scale = reading.scale_of(name, call, place, heads)
    return scale if not apart or scale is None else scale[:, :1, :1]


@plant("QUANT-4", "scale_of", needs=("q_format",))
def q_descale_dropped(name: str, call: Call, place: Place, heads: int) -> Maybe:
    """q's codes are used as they are."""
    return None if name == "q" else reading.scale_of(name, call, place, heads)


@plant("QUANT-4", "scale_of", needs=("q_format",))
def q_scaled_by_the_next_head(name: str, call: Call, place: Place, heads: int) -> Maybe:
    """q's scales by KV head are read modulo instead of by group; those by query head one off."""
    scale = reading.scale_of(name, call, place, heads)
    return scale if name != "q" or scale is None or scale.shape[0] == 1 else scale.roll(1, dims=0)
