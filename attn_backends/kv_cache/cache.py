"""`PagedKVCache`: pages of K and V for every layer of a model, and the sequences that live in them.

    cache = PagedKVCache(num_pages=1000, page_size=16, num_kv_heads=8, head_dim=128, num_layers=32, device="cuda")
    cache.add("a")
    slots = cache.grow({"a": 100})                                        # places for 100 tokens, in every layer
    for layer in range(32):
        cache.write(layer, k, v, slots)                                   # k, v [100, 8, 128]
        out = attention(q, cache.k[layer], cache.v[layer], causal=True, **cache.arguments(["a"], layer))
    cache.fork("a", "b")                                                  # the same 100 tokens, without a copy

Bookkeeping is on the host and never waits for the device. Not safe for several threads at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attn_backends.capability import KV_LAYOUTS
from attn_backends.errors import RequestError
from attn_backends.host.append_kv import append_kv
from attn_backends.kv_cache.descales import BY_TOKEN, Descale, layer_descales
from attn_backends.kv_cache.moving import copy_pages
from attn_backends.kv_cache.pool import PagePool
from attn_backends.kv_cache.sequences import Name, Sequences


class PagedKVCache:
    """The tensors of a cache and who uses which page.

    k, v: one tensor per layer, [pages, page_size, Hkv, D | Dv] (`NHD`) or [pages, Hkv, page_size, D | Dv] (`HND`)
    k_descales, v_descales: one per layer; None where that tensor is dense
    """

    def __init__(
        self,
        *,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        head_dim_v: int | None = None,
        num_layers: int = 1,
        k_dtype: torch.dtype = torch.bfloat16,
        v_dtype: torch.dtype | None = None,
        k_descale: Descale | Sequence[Descale] = None,
        v_descale: Descale | Sequence[Descale] = None,
        k_granularity: str | None = None,
        v_granularity: str | None = None,
        kv_layout: str = "NHD",
        device: torch.device | str = "cpu",
    ) -> None:
        """Allocate the pages.

        head_dim_v, v_dtype: as K's, unless given
        k_dtype, v_dtype: a float (dense), or float8_e4m3fn, float8_e5m2, int8: quantised on write
        k_descale, v_descale: for a quantised tensor, a float or tensor as `append_kv` takes them; a list gives every
            layer its own
        k_granularity, v_granularity: `"per_token_head"` without a descale computes each token's own on write, and keeps
            them beside the pages; else only where a tensor's shape fits two granularities

        Raises RequestError for sizes below 1, an unknown layout, a quantised tensor without descale, a dense one with.
        """
        if kv_layout not in KV_LAYOUTS:
            raise RequestError("kv_layout", kv_layout, "one of " + ", ".join(KV_LAYOUTS))
        for name, size in (("num_kv_heads", num_kv_heads), ("head_dim", head_dim), ("num_layers", num_layers)):
            if type(size) is not int or size < 1:
                raise RequestError(name, size, "a whole number >= 1")
        self._pool = PagePool(num_pages)
        self._sequences = Sequences(self._pool, page_size)
        self.page_size, self.kv_layout, self.device = page_size, kv_layout, torch.device(device)
        self._granularity = {"k": k_granularity, "v": v_granularity}
        cells = (page_size, num_kv_heads) if kv_layout == "NHD" else (num_kv_heads, page_size)
        shape = (num_pages, *cells)
        self.k = self._pages((*shape, head_dim), k_dtype, num_layers)
        self.v = self._pages((*shape, head_dim_v or head_dim), v_dtype or k_dtype, num_layers)
        alike: dict[str, Any] = {"cells": shape, "layers": num_layers, "device": self.device}
        self.k_descales = layer_descales("k", k_descale, granularity=k_granularity, dtype=k_dtype, **alike)
        self.v_descales = layer_descales("v", v_descale, granularity=v_granularity, dtype=v_dtype or k_dtype, **alike)

    @property
    def num_pages(self) -> int:
        """Pages in all."""
        return self._pool.size

    @property
    def free_pages(self) -> int:
        """Pages that no sequence holds."""
        return self._pool.free

    @property
    def sequences(self) -> tuple[Name, ...]:
        """The names of all sequences, in the order in which they were added."""
        return tuple(self._sequences)

    def length(self, name: Name) -> int:
        """Tokens of a sequence. Raises RequestError for one that is not there."""
        return self._sequences[name].length

    def pages(self, name: Name) -> tuple[int, ...]:
        """The pages of a sequence, in order. Raises RequestError for one that is not there."""
        return tuple(self._sequences[name].numbers)

    def add(self, name: Name) -> None:
        """A new, empty sequence. Raises RequestError for a name that is taken."""
        self._sequences.add(name)

    def fork(self, source: Name, name: Name) -> None:
        """A new sequence that begins as another one. Nothing is copied until one of them writes into a shared page."""
        self._sequences.fork(source, name)

    def free(self, name: Name) -> None:
        """Forget a sequence; pages that no other one holds are free at once."""
        self._sequences.free(name)

    def truncate(self, name: Name, length: int) -> None:
        """Forget a sequence's tokens from `length` on (rejected drafts). Raises RequestError for a greater length."""
        self._sequences.truncate(name, length)

    def grow(self, tokens: Mapping[Name, int]) -> torch.Tensor:
        """Room for so many tokens more in each of some sequences.

        Returns the new tokens' slots, int64 [all tokens], sequence after sequence, for `write`. A shared page that would
        be written to is copied first, in every layer. Raises OutOfPagesError, and then nothing has changed.
        """
        growth = self._sequences.grow(tokens)
        if growth.copies:
            sources, targets = zip(*growth.copies, strict=True)
            copy_pages(self._tensors(), sources, targets)
        return torch.tensor(growth.slots, dtype=torch.int64, device=self.device)

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        """Store tokens k [tokens, Hkv, D] and v [tokens, Hkv, Dv] at their slots, quantised where the cache is."""
        append_kv(
            k, v, self.k[layer], self.v[layer], slots, kv_layout=self.kv_layout,
            k_descale=self.k_descales[layer], v_descale=self.v_descales[layer],
            k_granularity=self._granularity["k"], v_granularity=self._granularity["v"],
        )  # fmt: skip

    def arguments(self, names: Sequence[Name], layer: int = 0) -> dict[str, Any]:
        """What `attention(q, cache.k[layer], cache.v[layer], ...)` must know to attend to these sequences, in this order."""
        pages = [self._sequences[name] for name in names]
        width = max([1, *(len(one.numbers) for one in pages)])
        table = [one.numbers + [0] * (width - len(one.numbers)) for one in pages]
        found: dict[str, Any] = {
            "block_table": torch.tensor(table, dtype=torch.int32, device=self.device).reshape(len(pages), width),
            "seq_lens": torch.tensor([one.length for one in pages], dtype=torch.int32, device=self.device),
            "max_seqlen_k": max([0, *(one.length for one in pages)]),
            "kv_layout": self.kv_layout,
        }
        for name, descales in (("k", self.k_descales), ("v", self.v_descales)):
            if descales[layer] is not None:
                found[f"{name}_descale"] = descales[layer]
                if self._granularity[name] is not None:
                    found[f"{name}_granularity"] = self._granularity[name]
        return found

    def defragment(self) -> int:
        """Move the pages in use together, to the front; returns how many moved. Sequences stay what they are.

        Block tables that were made before are then wrong: ask for `arguments` again.
        """
        moved = self._sequences.compact()
        copy_pages(self._tensors(), list(moved), list(moved.values()))
        return len(moved)

    def _tensors(self) -> list[torch.Tensor]:
        """Everything that lies by page."""
        by_token = [
            descale
            for name, descales in (("k", self.k_descales), ("v", self.v_descales))
            if self._granularity[name] == BY_TOKEN
            for descale in descales
            if isinstance(descale, torch.Tensor)
        ]
        return [*self.k, *self.v, *by_token]

    def _pages(self, shape: tuple[int, ...], dtype: torch.dtype, layers: int) -> list[torch.Tensor]:
        return [torch.zeros(shape, dtype=dtype, device=self.device) for _ in range(layers)]
