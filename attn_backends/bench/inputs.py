"""`Inputs`: the tensors of a cell, drawn anew from a seed and the cell's name. All backends get the same ones.

Standard normal values. A quantised tensor is drawn in the cell's dtype and stored with the scales that its own largest
values ask for. Pages of a paged cache lie in random order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch

from attn_backends.bench.cell import STORED_DTYPES, Cell
from attn_backends.quantization import RANGES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Inputs:
    """What `attention(q, k, v, **arguments)` is called with.

    q [B, Sq, Hq, D], or [Tq, Hq, D] where sequences differ; k, v [B, Sk, Hkv, D], or paged [P, page, Hkv, D].
    d_out: the output's gradient, shaped as q; None in forward cells.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    arguments: dict[str, Any]
    d_out: torch.Tensor | None


def make_inputs(cell: Cell, seed: int, device: torch.device) -> Inputs:
    """Draw the tensors of a cell. The same seed, cell and device give the same values."""
    generator = torch.Generator(device).manual_seed(_seed_of(cell, seed))
    dtype = getattr(torch, cell.dtype)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    store, arguments = cell.store, {**cell.scalars, "phase": cell.phase}
    q, q_scale = stored(drawn(*_query_shape(cell)), store.q_format, store.granularity_of("q"))
    k, k_scale = stored(drawn(*_key_shape(cell)), store.k_format, store.granularity_of("k"))
    v, v_scale = stored(drawn(*_key_shape(cell)), store.v_format, store.granularity_of("v"))
    scales = {"q_descale": q_scale, "k_descale": k_scale, "v_descale": v_scale}
    arguments |= {name: scale for name, scale in scales.items() if scale is not None}
    arguments |= {
        f"{name}_granularity": store.granularity_of(name) for name in "qkv" if store.granularity_of(name) != "none"
    }
    arguments |= _lengths(cell, device, generator)
    backward = cell.passes == "backward"
    if backward:
        q, k, v = (tensor.requires_grad_() for tensor in (q, k, v))
    return Inputs(q=q, k=k, v=v, arguments=arguments, d_out=drawn(*_query_shape(cell)) if backward else None)


def stored(tensor: torch.Tensor, form: str, granularity: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The tensor in a format, and its float32 descale: [1], [heads], or one per token and head; None when dense.

    The heads are the last dim but one, as in every layout used here.
    """
    if form == "dense":
        return tensor, None
    name = STORED_DTYPES[form]
    least, most = RANGES[name]
    reduced = {
        "per_tensor": tuple(range(tensor.dim())),
        "per_head": (*range(tensor.dim() - 2), -1),
        "per_token_head": (-1,),
    }
    descale = tensor.abs().amax(dim=reduced[granularity], keepdim=True).float().clamp(min=1e-12) / most
    scaled = (tensor / descale).clamp(least, most)
    values = scaled.round() if name == "int8" else scaled
    shapes = {"per_tensor": (1,), "per_head": (tensor.shape[-2],), "per_token_head": tensor.shape[:-1]}
    return values.to(getattr(torch, name)), descale.reshape(shapes[granularity])


def _seed_of(cell: Cell, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {cell.id}".encode()).digest()[:7], "big")


def _query_shape(cell: Cell) -> tuple[int, ...]:
    if cell.packed:
        return sum(count * new for count, new, _ in cell.sequences), cell.num_q_heads, cell.head_dim
    return cell.batch, cell.sequences[0][1], cell.num_q_heads, cell.head_dim


def _key_shape(cell: Cell) -> tuple[int, ...]:
    if cell.page_size is not None:
        return cell.num_pages or 0, cell.page_size, cell.num_kv_heads, cell.head_dim
    return cell.batch, cell.sequences[0][2], cell.num_kv_heads, cell.head_dim


def _lengths(cell: Cell, device: torch.device, generator: torch.Generator) -> dict[str, Any]:
    """The arguments that say how long sequences are and where their pages lie."""
    found: dict[str, Any] = {}
    lengths = cell.lengths
    if cell.packed:
        ends = torch.tensor([0, *(new for new, _ in lengths)]).cumsum(0)
        found |= {"layout": "thd", "cu_seqlens_q": ends.to(device, torch.int32), "max_seqlen_q": max(lengths)[0]}
    if cell.page_size is not None:
        keys = torch.tensor([length for _, length in lengths])
        found |= {"seq_lens": keys.to(device, torch.int32), "block_table": _block_table(cell, keys, device, generator)}
        found["max_seqlen_k"] = int(keys.max())
    return found


def _block_table(cell: Cell, keys: torch.Tensor, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """int32 [B, most pages]: every page of the pool once, in random order; unused entries are 0."""
    pages = [-(-length // (cell.page_size or 1)) for length in keys.tolist()]
    order = torch.randperm(sum(pages), generator=generator, device=device, dtype=torch.int64).to(torch.int32)
    table = torch.zeros((len(pages), max(pages)), dtype=torch.int32, device=device)
    start = 0
    for row, count in enumerate(pages):
        table[row, :count] = order[start : start + count]
        start += count
    return table
