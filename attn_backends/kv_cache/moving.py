"""`copy_pages` and `gather_kv`: pages of a cache from place to place, and sequences out of it. Any device, any format."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

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
    batch = len(seq_lens)
    if len(block_table) < batch:
        raise RequestError("block_table", tuple(block_table.shape), f"a row for each of {batch} sequences")
    if k_cache.shape[:3] != v_cache.shape[:3]:
        raise RequestError(
            "v_cache", tuple(v_cache.shape), f"pages, page_size and heads of k_cache, {tuple(k_cache.shape[:3])}"
        )
    k = _scaled("k", k_cache, (k_descale, k_granularity, None), kv_layout, batch, dtype)
    v = _scaled("v", v_cache, (v_descale, v_granularity, k_granularity), kv_layout, batch, dtype)
    lengths = seq_lens.to(torch.int64)
    starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    longest, total = torch.stack([lengths.max() if batch else starts[0], starts[-1]]).tolist()
    room = block_table.shape[1] * k.pages.shape[1]
    if longest > room:
        raise RequestError("seq_lens", longest, f"at most {room} tokens, what the table holds")
    cu_seqlens = starts.to(torch.int32)
    fused = (
        _kernel() if k_cache.device.type == "cuda" and not (torch.is_grad_enabled() and _differentiable(k, v)) else None
    )
    sources = [] if fused is None else [one.source(fused) for one in (k, v)]
    if fused is not None and all(fused.takes(source) for source in sources):
        rows = fused.gather(*sources, block_table, cu_seqlens, total=total, longest=longest)
        return *rows, cu_seqlens
    sequence = torch.repeat_interleave(torch.arange(batch, device=lengths.device), lengths, output_size=total)
    position = torch.arange(total, device=lengths.device) - starts[sequence]
    page = block_table[sequence, position // k.pages.shape[1]].to(torch.int64)
    places = (page, position % k.pages.shape[1], sequence)
    return k.rows(places), v.rows(places), cu_seqlens


def _differentiable(*sides: _Scaled) -> bool:
    """Whether somebody wants gradients of what is read."""
    return any(one is not None and one.requires_grad for side in sides for one in (side.pages, side.descale))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scaled:
    """One cache to read: pages [pages, page, Hkv, D] and a descale by token [pages, page, Hkv] as views; dtype: of its rows."""

    pages: torch.Tensor
    descale: torch.Tensor | None
    granularity: str
    dtype: torch.dtype

    def source(self, fused: Any) -> Any:
        """As the kernel takes it."""
        return fused.Source(pool=self.pages, descale=self.descale, granularity=self.granularity, dtype=self.dtype)

    def rows(self, places: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """[total, Hkv, width] at (page, cell) of every token, in torch."""
        page, cell, sequence = places
        stored = _as_bytes(self.pages)[page, cell]
        rows = stored.view(self.pages.dtype) if stored.dtype != self.pages.dtype else stored
        if self.descale is None:
            return rows.to(self.dtype)
        if self.granularity == "per_token_head":
            factors = self.descale[page, cell].unsqueeze(-1)
        elif self.granularity == "per_head" and self.descale.dim() == 2:
            factors = self.descale[sequence].unsqueeze(-1)
        else:
            factors = broadcast_scale(self.descale, self.granularity).transpose(0, 1)
        return (rows.to(torch.float32) * factors).to(self.dtype)


def _scaled(
    name: str,
    cache: torch.Tensor,
    scaling: tuple[Descale, str | None, str | None],
    kv_layout: str,
    batch: int,
    dtype: torch.dtype | None,
) -> _Scaled:
    """Check one cache against its descale."""
    pages = cache if kv_layout == "NHD" else cache.transpose(1, 2)
    descale, explicit, tie_break = scaling
    quantised = str(cache.dtype).removeprefix("torch.") in RANGES
    if descale is None:
        if quantised:
            raise RequestError(f"{name}_descale", None, f"a descale, since the {name} cache holds {cache.dtype}")
        return _Scaled(pages=pages, descale=None, granularity="none", dtype=dtype or cache.dtype)
    if not quantised:
        raise RequestError(f"{name}_descale", "given", f"none: the {name} cache is dense ({cache.dtype})")
    scale = torch.as_tensor(descale, dtype=torch.float32, device=cache.device)
    granularity = resolve_granularity(
        tuple(scale.shape), field=f"{name}_descale", heads=pages.shape[2], head_dim=pages.shape[3], batch=batch,
        paged=(pages.shape[0], pages.shape[1]), kv_layout=kv_layout, explicit=explicit, tie_break=tie_break,
    )  # fmt: skip
    if granularity == "per_token_head" and kv_layout == "HND":
        scale = scale.transpose(1, 2)
    return _Scaled(pages=pages, descale=scale, granularity=granularity, dtype=dtype or torch.bfloat16)


@functools.cache
def _kernel() -> ModuleType | None:
    """`fused_gather`; None without triton."""
    try:
        return importlib.import_module("attn_backends.kv_cache.fused_gather")
    except ImportError:
        return None


def _as_bytes(pool: torch.Tensor) -> torch.Tensor:
    """8-bit numbers as bytes, of which there are gathers and scatters everywhere; others as they are."""
    return pool.view(torch.uint8) if pool.element_size() == 1 else pool


def _numbers(name: str, given: torch.Tensor | Sequence[int], device: torch.device) -> torch.Tensor:
    if isinstance(given, torch.Tensor):
        if given.dtype != torch.int64 or given.dim() != 1:
            raise RequestError(name, f"{given.dtype} {list(given.shape)}", "int64 [n] page numbers, or a list")
        return given
    return torch.tensor(list(given), dtype=torch.int64, device=device)
