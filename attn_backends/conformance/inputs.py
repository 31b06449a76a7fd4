"""`Inputs`: q, k, v and the keywords of `attention()` for one case, as a user would hold them; made of `Logical` numbers.

What no sequence owns is poisoned, with NaN at even seeds and inf at odd ones: cells behind lengths, unused pages and
cells, tails of packed tensors, the padding between rows, the scales of tokens that are not there. Table entries past a
length are -1, far too large, or name a page of poison.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from attn_backends.block_mask import BlockMask
from attn_backends.conformance.case import Case
from attn_backends.conformance.case_request import kv_dtype, natural_out_dtype
from attn_backends.conformance.codes import codes_of
from attn_backends.conformance.drawing import Logical, draw, generator
from attn_backends.conformance.lengths import pages_of, phase_of, tail_rows
from attn_backends.conformance.placement import Placement, placements

DROPOUT_SEED = 2**33 + 12345  # both words of the key count
MASK_PAD = 3  # columns between the rows of a mask of four dims
BEYOND = (-1, 2**31 - 1)  # what table entries past the length hold, beside a page of NaN


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inputs:
    """One call: q, k, v and `attention`'s other arguments by name."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    given: dict[str, Any]

    @property
    def operands(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v."""
        return self.q, self.k, self.v

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor of the call by name."""
        named = {"q": self.q, "k": self.k, "v": self.v}
        named |= {name: value for name, value in self.given.items() if isinstance(value, torch.Tensor)}
        block_mask = self.given.get("block_mask")
        held = {} if block_mask is None else {"block_mask": block_mask.blocks, "block_mask.mask": block_mask.mask}
        return named | {name: tensor for name, tensor in held.items() if tensor is not None}


def make_inputs(case: Case, device: torch.device | str = "cpu") -> Inputs:
    """The inputs of a case; the same ones every time."""
    return store(draw(case), device)


def store(logical: Logical, device: torch.device | str = "cpu") -> Inputs:
    """Logical numbers as the tensors that the case passes."""
    case, cells = logical.case, _Cells(logical)
    numbers: dict[str, torch.Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    scales: dict[str, Any] = {}
    for name in "qkv":
        values = getattr(logical, name)
        dtypes[name] = getattr(torch, case.dtype if name == "q" else kv_dtype(case))
        if getattr(case, f"{name}_format") != "dense":
            codes = codes_of(case, name, values)
            values, dtypes[name] = codes.numbers, codes.dtype
            scales |= _descale(name, codes.scale, cells)
        numbers[name] = cells.laid_out(name, values)
    q, k, v = _placed(placements(case, logical.lengths), numbers, dtypes, logical.junk, torch.device(device))
    given = {**_plain_arguments(case), **_tensors(logical), **cells.arguments(), **scales}
    moved = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    if logical.mask is not None:
        moved["attn_mask"] = _stored_mask(case, moved["attn_mask"])
    if logical.blocks is not None and case.block_mask is not None:
        inside = None if logical.inside is None else logical.inside.to(device)
        moved["block_mask"] = BlockMask(logical.blocks.to(device), (case.block_mask, case.block_keys), inside)
    return _with_gradients(case, Inputs(q=q, k=k, v=v, given=moved))


def _with_gradients(case: Case, inputs: Inputs) -> Inputs:
    """Leaves where the case wants gradients."""
    q, k, v = inputs.q, inputs.k, inputs.v
    if case.grads:
        q, k, v = (x.detach().requires_grad_() if x.element_size() > 1 else x for x in (q, k, v))
    given = dict(inputs.given)
    for name, wanted in (("attn_mask", case.grad_bias), ("sinks", case.grad_sinks)):
        if wanted:
            given[name] = given[name].requires_grad_()
    return Inputs(q=q, k=k, v=v, given=given)


def _plain_arguments(case: Case) -> dict[str, Any]:
    """The arguments that are no tensors."""
    given: dict[str, Any] = {
        "layout": case.layout, "causal": case.causal, "causal_alignment": "top_left" if case.top_left else "bottom_right",
        "window_left": case.left, "window_right": case.right, "softmax_scale": case.scale, "softcap": case.softcap,
        "return_lse": case.lse, "deterministic": case.deterministic, "batch_invariant": case.batch_invariant,
        "nan_safe": case.nan_safe, "attn_type": case.attn_type, "kv_layout": case.kv_layout, "phase": phase_of(case),
    }  # fmt: skip
    if case.dropout > 0:
        given |= {"dropout_p": case.dropout, "dropout_seed": DROPOUT_SEED + case.seed}
    if case.out_dtype is not None:
        given["out_dtype"] = case.out_dtype
    for name in "qkv":
        if getattr(case, f"{name}_format") != "dense":
            given[f"{name}_granularity"] = case.granularity_of(name)
    return given | ({"scale_block": case.scale_block} if "block" in case.granularities else {})


def bias_dtype(case: Case) -> torch.dtype:
    """The dtype of a float mask: q's, or float32 at odd seeds."""
    own: torch.dtype = getattr(torch, natural_out_dtype(case))
    return torch.float32 if case.seed % 2 else own


def _tensors(logical: Logical) -> dict[str, torch.Tensor]:
    """Mask, sinks and slopes."""
    case, found = logical.case, {}
    if logical.mask is not None:
        wanted = torch.bool if case.mask == "bool" else bias_dtype(case)
        found["attn_mask"] = logical.mask.to(wanted)
    if logical.sinks is not None:
        found["sinks"] = logical.sinks.clone()
    if logical.slopes is not None:
        found["alibi_slopes"] = logical.slopes.clone()
    return found


def _stored_mask(case: Case, mask: torch.Tensor) -> torch.Tensor:
    """A mask in memory of its own, of which no kernel may think that it is contiguous.

    2 dims: keys before queries; 3: one head for all at odd seeds, by a stride of 0; 4: rows padded, visible there or NaN
    """
    if case.mask_dims == 2:
        return mask.t().clone(memory_format=torch.contiguous_format).t()
    if case.mask_dims == 3:
        return mask.clone().expand(case.q_heads, -1, -1)
    held = mask.new_full((*mask.shape[:-1], mask.shape[-1] + MASK_PAD), True if mask.dtype == torch.bool else math.nan)
    held[..., : mask.shape[-1]] = mask
    return held[..., : mask.shape[-1]]


class _Cells:
    """Where the tokens of a case go: dense rows, packed rows, or the pages of a cache."""

    def __init__(self, logical: Logical) -> None:
        self.case, self.lengths, self.junk = logical.case, logical.lengths, logical.junk
        self.table = _block_table(logical) if self.case.page_size is not None else None

    def arguments(self) -> dict[str, Any]:
        """The lengths and the table, as `attention` takes them."""
        case = self.case
        given: dict[str, Any] = {}
        if case.layout == "thd":
            given |= {"cu_seqlens_q": _cumulative(self.lengths.q), "max_seqlen_q": case.seq_q}
        if self.table is not None:
            given |= {"block_table": self.table, "seq_lens": _int32(self.lengths.k), "max_seqlen_k": case.seq_k}
        elif case.layout == "thd":
            given |= {"cu_seqlens_k": _cumulative(self.lengths.k), "max_seqlen_k": case.seq_k}
        elif case.ragged:
            given["seq_lens"] = _int32(self.lengths.k)
        return given

    def laid_out(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Values [B, S, ...] in the storage order of q, k or v, junk where no token is."""
        if name == "q":
            return self._packed(values, self.lengths.q, 0) if self.case.layout == "thd" else values
        if self.table is not None:
            return self._paged(values, self.table)
        if self.case.layout == "thd":
            return self._packed(values, self.lengths.k, tail_rows(self.case))
        held = values.clone()
        for sequence, length in enumerate(self.lengths.k):
            held[sequence, length:] = self.junk
        return held

    def _packed(self, values: torch.Tensor, lengths: tuple[int, ...], tail: int) -> torch.Tensor:
        rows = [values[sequence, :length] for sequence, length in enumerate(lengths)]
        return torch.cat([*rows, values.new_full((tail, *values.shape[2:]), self.junk)])

    def _paged(self, values: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        size = self.case.page_size or 1
        pool = values.new_full((pages_of(self.case, self.lengths)[1], size, *values.shape[2:]), self.junk)
        for sequence, length in enumerate(self.lengths.k):
            token = torch.arange(length)
            pool[table[sequence].to(torch.int64)[token // size], token % size] = values[sequence, :length]
        return pool


def _block_table(logical: Logical) -> torch.Tensor:
    """int32 [B, columns]: pages in a shuffled order; past the length -1, far too large, or a page of junk."""
    used, pool, columns = pages_of(logical.case, logical.lengths)
    order = torch.randperm(pool, generator=generator(logical.case, f"pages{logical.pages}")).tolist()
    table, start = [], 0
    for sequence, count in enumerate(used):
        own = order[start : start + count]
        beyond = [*BEYOND, order[-1]]
        table.append([*own, *(beyond[(sequence + column) % 3] for column in range(columns - count))])
        start += count
    return torch.tensor(table, dtype=torch.int32).reshape(len(used), columns)


def _descale(name: str, scale: torch.Tensor, cells: _Cells) -> dict[str, Any]:
    """The descale as it is passed: a float for one number at even seeds, per-token scales as their tokens lie."""
    case = cells.case
    if case.granularity_of(name) == "per_tensor" and scale.dim() == 0:
        return {f"{name}_descale": float(scale)}
    if case.granularity_of(name) == "per_token_head":
        scale = cells.laid_out(name, scale)
        if name != "q" and case.page_size is not None and case.kv_layout == "HND":
            scale = scale.transpose(1, 2).contiguous()
    return {f"{name}_descale": scale}


def _placed(
    where: dict[str, Placement],
    numbers: dict[str, torch.Tensor],
    dtypes: dict[str, torch.dtype],
    junk: float,
    device: torch.device,
) -> list[torch.Tensor]:
    """q, k and v as views of their buffers."""
    buffers: dict[str, torch.Tensor] = {}
    for name, one in where.items():
        if one.buffer not in buffers:
            buffers[one.buffer] = stored(torch.full((one.span,), junk, dtype=torch.float64), dtypes[name])
        view = buffers[one.buffer].as_strided(one.sizes, one.strides, one.offset)
        view.copy_(stored(numbers[name], dtypes[name]))
    moved = {name: buffer.to(device) for name, buffer in buffers.items()}
    return [moved[one.buffer].as_strided(one.shape, one.steps, one.offset) for one in where.values()]


def stored(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Float64 numbers in a storage dtype; int8 has neither NaN nor inf and holds 127 for them."""
    return numbers.nan_to_num(nan=127.0, posinf=127.0).to(dtype) if dtype == torch.int8 else numbers.to(dtype)


def _int32(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor(lengths, dtype=torch.int32)


def _cumulative(lengths: tuple[int, ...]) -> torch.Tensor:
    return _int32(tuple(accumulate(lengths, initial=0)))
