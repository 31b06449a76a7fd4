"""`Geometry`: the sizes of a call, read off its tensors; every mismatch is a RequestError before anything is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from attn_backends.capability import KV_LAYOUTS, LAYOUTS
from attn_backends.errors import RequestError

if TYPE_CHECKING:
    from attn_backends.host.arguments import Arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Sizes of one call; lengths are the longest of the batch, totals are of packed tensors."""

    batch: int
    seq_q: int
    seq_k: int
    num_q_heads: int
    num_kv_heads: int
    head_dim_qk: int
    head_dim_v: int
    total_q: int | None = None
    total_k: int | None = None
    page_size: int | None = None
    num_pages: int | None = None

    @property
    def paged(self) -> bool:
        """Whether K and V are a paged cache."""
        return self.page_size is not None

    @property
    def packed(self) -> bool:
        """Whether q is packed."""
        return self.total_q is not None


def read_geometry(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Arguments) -> Geometry:
    """Sizes of the call. Raises RequestError for ranks, sizes or arguments that do not go together."""
    if a.layout not in LAYOUTS:
        raise RequestError("layout", a.layout, "one of " + ", ".join(LAYOUTS))
    if a.kv_layout not in KV_LAYOUTS:
        raise RequestError("kv_layout", a.kv_layout, "one of " + ", ".join(KV_LAYOUTS))
    _check_companions(a)
    queries: dict[str, Any] = _queries(q, a)
    keys: dict[str, Any] = _paged_keys(k, v, a) if a.block_table is not None else _plain_keys(k, v, a)
    geometry = Geometry(**queries, **keys)
    _check_agreement(q, k, a, geometry)
    return geometry


def _check_companions(a: Arguments) -> None:
    packed = a.layout == "thd"
    if packed and a.cu_seqlens_q is None:
        raise RequestError("cu_seqlens_q", None, "int32 [batch + 1], since layout='thd'")
    if not packed and a.cu_seqlens_q is not None:
        raise RequestError(
            "cu_seqlens_q", "given", f"none with layout={a.layout!r}", hint="packed tensors are layout='thd'"
        )
    if a.block_table is not None:
        if a.seq_lens is None:
            raise RequestError("seq_lens", None, "int32 [batch], since block_table is given; the length comes from it")
        if a.cu_seqlens_k is not None:
            raise RequestError("cu_seqlens_k", "given", "none with block_table; the lengths are seq_lens")
    elif packed:
        if a.cu_seqlens_k is None:
            raise RequestError("cu_seqlens_k", None, "int32 [batch + 1], since layout='thd'")
        if a.seq_lens is not None:
            raise RequestError("seq_lens", "given", "none with packed K and V; the lengths are cu_seqlens_k")
    elif a.cu_seqlens_k is not None:
        raise RequestError(
            "cu_seqlens_k", "given", f"none with layout={a.layout!r}", hint="packed tensors are layout='thd'"
        )


def _rank(name: str, tensor: torch.Tensor, rank: int, shape: str) -> None:
    if tensor.dim() != rank:
        raise RequestError(name, f"shape {list(tensor.shape)}", f"{rank} dims, {shape}")


def _queries(q: torch.Tensor, a: Arguments) -> dict[str, Any]:
    if a.layout == "thd":
        _rank("q", q, 3, "[total_q, heads, head_dim] with layout='thd'")
        total, heads, width = q.shape
        batch = _batch_of(a.cu_seqlens_q)
        return {
            "batch": batch, "total_q": total, "num_q_heads": heads, "head_dim_qk": width,
            "seq_q": longest("max_seqlen_q", a.max_seqlen_q, a.cu_seqlens_q, a.graph),
        }  # fmt: skip
    if a.layout == "bshd":
        _rank("q", q, 4, "[batch, seq, heads, head_dim] with layout='bshd'")
        batch, seq, heads, width = q.shape
    else:
        _rank("q", q, 4, "[batch, heads, seq, head_dim] with layout='bhsd'")
        batch, heads, seq, width = q.shape
    return {"batch": batch, "seq_q": seq, "num_q_heads": heads, "head_dim_qk": width}


def _plain_keys(k: torch.Tensor, v: torch.Tensor, a: Arguments) -> dict[str, Any]:
    packed = a.layout == "thd"
    for name, tensor in (("k", k), ("v", v)):
        _rank(name, tensor, 3 if packed else 4, "like q")
    if k.shape[:-1] != v.shape[:-1]:
        raise RequestError(
            "v", f"shape {list(v.shape)}", f"that of k up to head_dim, {list(k.shape[:-1])} + [head_dim_v]"
        )
    if packed:
        return {
            "total_k": k.shape[0], "num_kv_heads": k.shape[1], "head_dim_v": v.shape[2],
            "seq_k": longest("max_seqlen_k", a.max_seqlen_k, a.cu_seqlens_k, a.graph),
        }  # fmt: skip
    seq, heads = (k.shape[1], k.shape[2]) if a.layout == "bshd" else (k.shape[2], k.shape[1])
    return {"seq_k": seq, "num_kv_heads": heads, "head_dim_v": v.shape[3]}


def _paged_keys(k: torch.Tensor, v: torch.Tensor, a: Arguments) -> dict[str, Any]:
    shape = "[pages, page_size, heads, head_dim]" if a.kv_layout == "NHD" else "[pages, heads, page_size, head_dim]"
    for name, tensor in (("k", k), ("v", v)):
        _rank(name, tensor, 4, f"{shape} with block_table and kv_layout={a.kv_layout!r}")
    if k.shape[:-1] != v.shape[:-1]:
        raise RequestError(
            "v", f"shape {list(v.shape)}", f"that of k up to head_dim, {list(k.shape[:-1])} + [head_dim_v]"
        )
    pages, second, third, _ = k.shape
    page_size, heads = (second, third) if a.kv_layout == "NHD" else (third, second)
    table = a.block_table
    if table is None or table.dim() != 2:
        raise RequestError(
            "block_table", None if table is None else f"shape {list(table.shape)}", "int32 [batch, max_pages]"
        )
    capacity = table.shape[1] * page_size
    if a.max_seqlen_k is not None and a.max_seqlen_k > capacity:
        raise RequestError("max_seqlen_k", a.max_seqlen_k, f"at most {capacity}, what the block_table holds")
    return {
        "seq_k": capacity if a.max_seqlen_k is None else a.max_seqlen_k, "num_kv_heads": heads,
        "head_dim_v": v.shape[3], "page_size": page_size, "num_pages": pages,
    }  # fmt: skip


def _batch_of(cu_seqlens: torch.Tensor | None) -> int:
    if cu_seqlens is None or cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 1:
        got = None if cu_seqlens is None else f"shape {list(cu_seqlens.shape)}"
        raise RequestError("cu_seqlens_q", got, "int32 [batch + 1]")
    return cu_seqlens.shape[0] - 1


def longest(name: str, given: int | None, cu_seqlens: torch.Tensor | None, graph: str | None) -> int:
    """The longest sequence: as given, else read from the lengths, which costs a sync on a GPU."""
    if given is not None:
        if type(given) is not int or given < 0:
            raise RequestError(name, given, "none or a whole number >= 0")
        return given
    steps = steps_of(cu_seqlens)
    if steps is None:
        return 0
    if graph not in (None, "never"):
        raise RequestError(name, None, f"a number, since graph={graph!r} allows no device-to-host sync")
    return max(0, int(steps.max()))


def steps_of(cu_seqlens: torch.Tensor | None) -> torch.Tensor | None:
    """Length of each packed sequence; None where there is none, or no legal `cu_seqlens` (a later check says so)."""
    if cu_seqlens is None or cu_seqlens.is_meta or cu_seqlens.dtype != torch.int32:
        return None
    return None if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2 else cu_seqlens[1:] - cu_seqlens[:-1]


def resolve_lengths(a: Arguments) -> None:
    """Fill in what the caller left out and only the lengths tell (a sync on a GPU, unless given).

    Whoever makes a request or a key of a call resolves it first, so that all of them see one call.
    """
    if a.cu_seqlens_q is None:
        return
    if a.max_seqlen_q is None:
        a.max_seqlen_q = longest("max_seqlen_q", None, a.cu_seqlens_q, a.graph)
    if a.max_seqlen_k is None and a.cu_seqlens_k is not None:
        a.max_seqlen_k = longest("max_seqlen_k", None, a.cu_seqlens_k, a.graph)
    if a.phase is None and a.block_table is not None:
        a.phase = _phase_of_packed(a)


def _phase_of_packed(a: Arguments) -> str | None:
    """`append` or `mixed` by the lengths, where reading them costs no sync; None leaves it to the sizes."""
    steps = steps_of(a.cu_seqlens_q)
    if steps is None or steps.device.type != "cpu":
        return None
    if (a.max_seqlen_q or 0) <= 1:
        return "decode"
    return "append" if int(steps.min()) > 1 else "mixed"


def _check_agreement(q: torch.Tensor, k: torch.Tensor, a: Arguments, g: Geometry) -> None:
    if k.shape[-1] != g.head_dim_qk:
        raise RequestError("k", f"head_dim {k.shape[-1]}", f"that of q, {g.head_dim_qk}")
    for name, heads in (("q", g.num_q_heads), ("k", g.num_kv_heads)):
        if heads < 1:
            raise RequestError(name, f"{heads} heads", "at least 1 head")
    if g.head_dim_qk < 1 or g.head_dim_v < 1:
        raise RequestError("head_dim", (g.head_dim_qk, g.head_dim_v), "at least 1")
    if not g.paged and not g.packed and k.shape[0] != q.shape[0]:
        raise RequestError("k", f"batch {k.shape[0]}", f"that of q, {q.shape[0]}")
    lengths = (("cu_seqlens_k", a.cu_seqlens_k, g.batch + 1), ("seq_lens", a.seq_lens, g.batch))
    for name, tensor, size in lengths:
        if tensor is not None and tuple(tensor.shape) != (size,):
            raise RequestError(name, f"shape {list(tensor.shape)}", f"[{size}]")
    if a.block_table is not None and a.block_table.shape[0] != g.batch:
        raise RequestError("block_table", f"shape {list(a.block_table.shape)}", f"[{g.batch}, max_pages]")
