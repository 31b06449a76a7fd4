"""What benchmarks/paged_decode.py asks backends about: paged batches, one cache in several formats, exact answers, FA3.

Pages of 16 tokens in random order, standard normal values. All formats store the same numbers.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from attn_backends import attention
from attn_backends.bench.inputs import stored

PAGE = 16
LIBRARY = Path(".carry/gpu/peers/_vllm_fa3_C.abi3.so")  # FlashAttention-3 with paged KV, out of vLLM's wheel
_E4M3, _INT8 = "scaled-fp8-e4m3", "scaled-int8"
STORES = {  # format of K, of V, granularity of what is scaled
    "bf16": ("dense", "dense", "per_tensor"),
    "e4m3": (_E4M3, _E4M3, "per_tensor"),
    "int8": (_INT8, _INT8, "per_tensor"),
    "int8 by token": (_INT8, _INT8, "per_token_head"),
    "V e4m3": ("dense", _E4M3, "per_tensor"),
}
Heads = tuple[int, int, int]  # query heads, KV heads, width
Ask = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cache:
    """Pages of K and V [P, page, Hkv, D] and their descales."""

    k: torch.Tensor
    v: torch.Tensor
    scaling: dict[str, Any]

    @property
    def token_bytes(self) -> int:
        """Bytes of K, V and descales by token that one token's heads take."""
        taken = [self.k, self.v, *(one for one in self.scaling.values() if isinstance(one, torch.Tensor))]
        return sum(one[0, 0].numel() * one.element_size() for one in taken if one.dim() > 1)

    def rows(self, name: str, pages: torch.Tensor) -> torch.Tensor:
        """float64 [tokens, Hkv, D] of those pages."""
        pool = getattr(self, name)
        codes = pool.view(torch.uint8)[pages].view(pool.dtype) if pool.element_size() == 1 else pool[pages]
        descale = self.scaling.get(f"{name}_descale")
        values = codes.double()
        if descale is not None:
            values *= (descale if descale.dim() == 1 else descale[pages].unsqueeze(-1)).double()
        return values.flatten(0, 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Queries [B, Sq, Hq, D], or packed [T, Hq, D] where sequences differ, and where their keys lie.

    arguments: of `attention()`, besides the cache's own
    """

    q: torch.Tensor
    new: tuple[int, ...]
    keys: tuple[int, ...]
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> torch.Tensor:
        """int32 [B, pages]."""
        found: torch.Tensor = self.arguments["block_table"]
        return found


def caches_of(pages: int, heads: Heads, stores: tuple[str, ...], device: torch.device) -> dict[str, Cache]:
    """The same numbers in every format asked for."""
    k, v = (torch.randn(pages, PAGE, heads[1], heads[2], device=device, dtype=torch.bfloat16) for _ in "kv")
    kept: dict[tuple[str, str, str], tuple[torch.Tensor, torch.Tensor | None]] = {}

    def in_format(name: str, drawn: torch.Tensor, form: str, granularity: str) -> Any:
        key = (name, form, granularity)
        if key not in kept:
            kept[key] = stored(drawn, form, granularity)
        return kept[key]

    found = {}
    for store in stores:
        k_format, v_format, granularity = STORES[store]
        k_codes, k_descale = in_format("k", k, k_format, granularity)
        v_codes, v_descale = in_format("v", v, v_format, granularity)
        scaling: dict[str, Any] = {}
        for name, descale in (("k", k_descale), ("v", v_descale)):
            if descale is not None:
                scaling |= {f"{name}_descale": descale, f"{name}_granularity": granularity}
        found[store] = Cache(k=k_codes, v=v_codes, scaling=scaling)
    return found


def batch_of(new: tuple[int, ...], keys: tuple[int, ...], heads: Heads, device: torch.device) -> tuple[Batch, int]:
    """(a batch, pages of its pool): every page once; entries behind a sequence's end are 0."""
    counts = [-(-length // PAGE) for length in keys]
    order = torch.randperm(sum(counts), device=device).to(torch.int32)
    table = torch.zeros(len(keys), max(counts), device=device, dtype=torch.int32)
    start = 0
    for row, count in enumerate(counts):
        table[row, :count] = order[start : start + count]
        start += count
    return over(new, keys, heads, table), sum(counts)


def over(new: tuple[int, ...], keys: tuple[int, ...], heads: Heads, table: torch.Tensor) -> Batch:
    """A batch over a given table."""
    device = table.device
    packed = len(set(new)) > 1
    shape = (sum(new),) if packed else (len(new), new[0])
    q = torch.randn(*shape, heads[0], heads[2], device=device, dtype=torch.bfloat16)
    arguments: dict[str, Any] = {
        "block_table": table, "seq_lens": torch.tensor(keys, dtype=torch.int32, device=device), "max_seqlen_k": max(keys),
        "causal": True,
    }  # fmt: skip
    if packed:
        ends = torch.tensor([0, *new]).cumsum(0).to(device, torch.int32)
        arguments |= {"layout": "thd", "cu_seqlens_q": ends, "max_seqlen_q": max(new)}
    return Batch(q=q, new=new, keys=keys, arguments=arguments)


def some(batch: Batch, first: int, last: int) -> Batch:
    """Sequences first .. last - 1, which have equally many new tokens, as a batch of their own."""
    new, keys = batch.new[first:last], batch.keys[first:last]
    rows = batch.q.reshape(-1, *batch.q.shape[-2:])[sum(batch.new[:first]) : sum(batch.new[:last])]
    q = rows.reshape(len(new), new[0], *rows.shape[1:]).clone()
    arguments = {
        "block_table": batch.table[first:last].clone(), "seq_lens": batch.arguments["seq_lens"][first:last].clone(),
        "max_seqlen_k": max(keys), "causal": True,
    }  # fmt: skip
    return Batch(q=q, new=new, keys=keys, arguments=arguments)


def ask(backend: str, batch: Batch, cache: Cache) -> Ask:
    """A backend of this project's on a batch."""
    arguments = {**batch.arguments, **cache.scaling}
    q, k, v = batch.q, cache.k, cache.v

    def call() -> torch.Tensor:
        out: torch.Tensor = attention(q, k, v, backend=backend, **arguments)
        return out

    return call


@functools.cache
def fa3_operator() -> Callable[..., Any]:
    """FlashAttention-3's forward from the library, or else from an installed package. Raises where there is neither."""
    if LIBRARY.exists():
        torch.ops.load_library(str(LIBRARY.resolve()))
        positional = getattr(torch.ops, LIBRARY.name.split(".")[0]).fwd

        def forward(q: Any, k: Any, v: Any, **given: Any) -> Any:
            at = given.get
            return positional(
                q, k, v, None, None, None, None, at("cu_seqlens_q"), None, None, None, at("seqused_k"),
                at("max_seqlen_q"), at("max_seqlen_k"), at("page_table"), None, None, None, None, None,
                at("q_descale"), at("k_descale"), at("v_descale"), at("softmax_scale"), True, -1, -1, 0.0, True,
                None, 0, None, 0, None, 1, 0, None,
            )  # fmt: skip

        return forward
    installed = importlib.import_module("attn_backends.backends.fa3.kernel").forward
    return functools.partial(installed, is_causal=True)


def ask_fa3(batch: Batch, cache: Cache) -> Ask:
    """FlashAttention-3's paged path, outside this project; an e4m3 cache takes an e4m3 q, which is made before the clock runs."""
    operator = fa3_operator()
    rows, heads = batch.q.shape[-2:][0], cache.k.shape[2]
    q = batch.q.reshape(-1, rows, batch.q.shape[-1])
    ends = torch.tensor([0, *batch.new]).cumsum(0).to(q.device, torch.int32)
    given: dict[str, Any] = {
        "cu_seqlens_q": ends, "seqused_k": batch.arguments["seq_lens"], "max_seqlen_q": max(batch.new),
        "max_seqlen_k": max(batch.keys), "page_table": batch.table, "softmax_scale": q.shape[-1] ** -0.5,
    }  # fmt: skip
    if cache.k.element_size() == 1:
        q = q.to(cache.k.dtype)
        given["q_descale"] = torch.ones(len(batch.new), heads, device=q.device)
        for name in "kv":
            given[f"{name}_descale"] = cache.scaling[f"{name}_descale"].expand(len(batch.new), heads).contiguous()

    def call() -> torch.Tensor:
        out: torch.Tensor = operator(q, cache.k, cache.v, **given)[0]
        return out

    return call


def error_of(out: torch.Tensor, batch: Batch, cache: Cache, sequence: int = -1) -> float:
    """Of a sequence's last token, relative to its exact output in float64 from what the cache stores."""
    sequence %= len(batch.new)
    place = sum(batch.new[: sequence + 1]) - 1
    got = out.reshape(-1, *out.shape[-2:])[place].double()
    right = exact(batch.q.reshape(-1, *batch.q.shape[-2:])[place], cache, batch.table[sequence], batch.keys[sequence])
    return float((got - right).norm() / right.norm())


def exact(q: torch.Tensor, cache: Cache, table: torch.Tensor, length: int) -> torch.Tensor:
    """float64 [Hq, D]: one token's heads q [Hq, D] over the first `length` keys of a table's row."""
    pages = table[: -(-length // PAGE)].long()
    ratio = q.shape[0] // cache.k.shape[2]
    k, v = (cache.rows(name, pages)[:length].repeat_interleave(ratio, dim=1) for name in "kv")
    scores = torch.einsum("hd,nhd->hn", q.double(), k) * q.shape[-1] ** -0.5
    return torch.einsum("hn,nhd->hd", scores.softmax(-1), v)
