"""`copy_pages` and `gather_kv`: pages of a cache from place to place, and sequences out of it. Any device, any format."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from attn_backends.capability import KV_LAYOUTS
from attn_backends.errors import RequestError
from attn_backends.quantization import RANGES, broadcast_scale, resolve_granularity

Descale = torch.Tensor | float | None


def copy_pages(
    pools: Sequence[torch.Tensor], sources: torch.Tensor | Sequence[int], targets: torch.Tensor | Sequence[int]
) -> None:
    """pool[targets] = pool[sources] for every pool, in place; all pages are read before any is written.

    pools: tensors whose first dim is pages: caches, and descales by token
    sources, targets: page numbers [n], int64 or lists; the targets are distinct

    Makes no device-to-host copy. Raises RequestError for numbers of another dtype or count.
    """
    if not pools:
        return
    device = pools[0].device
    read, written = (_numbers(name, given, device) for name, given in (("sources", sources), ("targets", targets)))
    if read.shape != written.shape:
        raise RequestError("targets", f"{written.numel()} pages", f"{read.numel()} pages, as sources")
    for pool in pools:
        cells = _as_bytes(pool)
        cells.index_copy_(0, written, cells.index_select(0, read))


def gather_kv(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    kv_layout: str = "NHD",
    k_descale: Descale = None,
    v_descale: Descale = None,
    k_granularity: str | None = None,
    v_granularity: str | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The keys and values of every sequence out of its pages, one sequence after the other.

    k_cache, v_cache: [pages, page_size, Hkv, D | Dv] (`NHD`) or [pages, Hkv, page_size, D | Dv] (`HND`)
    block_table, seq_lens: int32 [B, max_pages] and [B]
    k_descale, v_descale: as in `attention()`, `block` excepted; a quantised cache is multiplied by its descales
    dtype: of the results; the cache's own, or bfloat16 for a quantised one, unless given

    Returns (k [total, Hkv, D], v [total, Hkv, Dv], cu_seqlens int32 [B + 1]): new tensors. Copies the lengths to the host
    once, since they are the results' sizes. Raises RequestError.
    """
    if kv_layout not in KV_LAYOUTS:
        raise RequestError("kv_layout", kv_layout, "one of " + ", ".join(KV_LAYOUTS))
    page_size = k_cache.shape[1 if kv_layout == "NHD" else 2]
    lengths = seq_lens.to(torch.int64)
    ends = lengths.cumsum(0)
    sequence = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    position = torch.arange(len(sequence), device=lengths.device) - (ends - lengths)[sequence]
    column = position // page_size
    if bool((column >= block_table.shape[1]).any()):
        raise RequestError(
            "seq_lens", int(lengths.max()), f"at most {block_table.shape[1] * page_size} tokens, what the table holds"
        )
    places = (block_table[sequence, column].to(torch.int64), position % page_size, sequence)
    starts = torch.cat([ends.new_zeros(1), ends]).to(torch.int32)
    k = _gathered("k", k_cache, (k_descale, k_granularity, None), places, kv_layout, len(lengths), dtype)
    v = _gathered("v", v_cache, (v_descale, v_granularity, k_granularity), places, kv_layout, len(lengths), dtype)
    return k, v, starts


def _gathered(
    name: str,
    cache: torch.Tensor,
    scaling: tuple[Descale, str | None, str | None],
    places: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    kv_layout: str,
    batch: int,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    """Rows [total, Hkv, width] at (page, cell) of every token."""
    pages, cells, sequence = places
    pool = cache if kv_layout == "NHD" else cache.transpose(1, 2)
    stored = _as_bytes(pool)[pages, cells]
    rows = stored.view(cache.dtype) if stored.dtype != cache.dtype else stored
    descale, explicit, tie_break = scaling
    quantised = str(cache.dtype).removeprefix("torch.") in RANGES
    if descale is None:
        if quantised:
            raise RequestError(f"{name}_descale", None, f"a descale, since the {name} cache holds {cache.dtype}")
        return rows if dtype is None else rows.to(dtype)
    if not quantised:
        raise RequestError(f"{name}_descale", "given", f"none: the {name} cache is dense ({cache.dtype})")
    scale = torch.as_tensor(descale, dtype=torch.float32, device=cache.device)
    granularity = resolve_granularity(
        tuple(scale.shape), field=f"{name}_descale", heads=pool.shape[2], head_dim=pool.shape[3], batch=batch,
        paged=(pool.shape[0], pool.shape[1]), kv_layout=kv_layout, explicit=explicit, tie_break=tie_break,
    )  # fmt: skip
    if granularity == "per_token_head":
        factors = (scale if kv_layout == "NHD" else scale.transpose(1, 2))[pages, cells].unsqueeze(-1)
    elif granularity == "per_head" and scale.dim() == 2:
        factors = scale[sequence].unsqueeze(-1)
    else:
        factors = broadcast_scale(scale, granularity).transpose(0, 1)
    return (rows.to(torch.float32) * factors).to(dtype or torch.bfloat16)


def _as_bytes(pool: torch.Tensor) -> torch.Tensor:
    """8-bit numbers as bytes, of which there are gathers and scatters everywhere; others as they are."""
    return pool.view(torch.uint8) if pool.element_size() == 1 else pool


def _numbers(name: str, given: torch.Tensor | Sequence[int], device: torch.device) -> torch.Tensor:
    if isinstance(given, torch.Tensor):
        if given.dtype != torch.int64 or given.dim() != 1:
            raise RequestError(name, f"{given.dtype} {list(given.shape)}", "int64 [n] page numbers, or a list")
        return given
    return torch.tensor(list(given), dtype=torch.int64, device=device)
