"""Where the tensors of a case lie in memory: sizes, strides and offset of q, k and v in one buffer or several.

One description serves both the request of a case (which needs no tensors) and the tensors themselves, so that they
cannot disagree. Sizes and strides are in elements, in the logical order (batch or pages, tokens, heads, width), packed
tensors without the first. K and V lie differently wherever the kind of memory allows it. No torch here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from attn_backends.conformance.case import Case
from attn_backends.conformance.lengths import Lengths, lengths_of, pages_of, tail_rows
from attn_backends.strides import contiguous

PAD = 8  # further columns under `row_padded`
UNIT_STRIDE = 3  # stride of dims of size 1 under `odd_unit_strides`
Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One tensor inside a buffer of `span` elements; `heads_first`: the tensor as passed has heads before tokens."""

    buffer: str
    span: int
    sizes: Sizes
    strides: Sizes
    offset: int = 0
    heads_first: bool = False

    @property
    def shape(self) -> Sizes:
        """Sizes as passed to attention."""
        return _swapped(self.sizes) if self.heads_first else self.sizes

    @property
    def steps(self) -> Sizes:
        """Strides as passed to attention."""
        return _swapped(self.strides) if self.heads_first else self.strides


def placements(case: Case, lengths: Lengths | None = None) -> dict[str, Placement]:
    """The placements of q, k and v, by name; for other lengths than the case's own, if given."""
    sizes = logical_sizes(case, lengths or lengths_of(case))
    first = {"q": case.layout == "bhsd"}
    first["k"] = first["v"] = case.kv_layout == "HND" if case.page_size is not None else case.layout == "bhsd"
    if case.memory == "fused":
        return _fused(case, sizes, first)
    kinds = {"q": case.memory, "k": case.memory, "v": _KIND_OF_V[case.memory]}
    return {name: _alone(name, kinds[name], sizes[name], first[name]) for name in "qkv"}


_KIND_OF_V = {"contiguous": "contiguous", "head_major": "row_padded", "row_padded": "head_major",
              "row_step2": "row_padded", "last_dim_step2": "row_padded", "odd_unit_strides": "odd_unit_strides"}  # fmt: skip


def logical_sizes(case: Case, lengths: Lengths) -> dict[str, Sizes]:
    """Sizes of q, k and v in the logical order."""
    queries: Sizes = (sum(lengths.q),) if case.layout == "thd" else (case.batch, case.seq_q)
    if case.page_size is not None:
        keys: Sizes = (pages_of(case, lengths)[1], case.page_size)
    elif case.layout == "thd":
        keys = (sum(lengths.k) + tail_rows(case),)
    else:
        keys = (case.batch, case.seq_k)
    return {
        "q": (*queries, case.q_heads, case.head_dim),
        "k": (*keys, case.kv_heads, case.head_dim),
        "v": (*keys, case.kv_heads, case.head_dim_v),
    }


def _alone(name: str, kind: str, sizes: Sizes, heads_first: bool) -> Placement:
    buffer, strides = _KINDS[kind](sizes, heads_first)
    return Placement(buffer=name, span=math.prod(buffer), sizes=sizes, strides=strides, heads_first=heads_first)


def _contiguous(sizes: Sizes, heads_first: bool) -> tuple[Sizes, Sizes]:
    return sizes, contiguous(sizes, heads_first)


def _head_major(sizes: Sizes, heads_first: bool) -> tuple[Sizes, Sizes]:
    """Heads and tokens in the other order."""
    return sizes, contiguous(sizes, not heads_first)


def _row_padded(sizes: Sizes, heads_first: bool) -> tuple[Sizes, Sizes]:
    buffer = (*sizes[:-1], sizes[-1] + PAD)
    return buffer, contiguous(buffer, heads_first)


def _row_step2(sizes: Sizes, heads_first: bool) -> tuple[Sizes, Sizes]:
    buffer = (*sizes[:-3], 2 * sizes[-3], *sizes[-2:])
    strides = contiguous(buffer, heads_first)
    return buffer, (*strides[:-3], 2 * strides[-3], *strides[-2:])


def _last_dim_step2(sizes: Sizes, heads_first: bool) -> tuple[Sizes, Sizes]:
    buffer = (*sizes[:-1], 2 * sizes[-1])
    return buffer, (*contiguous(buffer, heads_first)[:-1], 2)


def _odd_unit_strides(sizes: Sizes, heads_first: bool) -> tuple[Sizes, Sizes]:
    strides = contiguous(sizes, heads_first)
    return sizes, tuple(UNIT_STRIDE if size == 1 else step for size, step in zip(sizes, strides, strict=True))


_KINDS = {"contiguous": _contiguous, "head_major": _head_major, "row_padded": _row_padded, "row_step2": _row_step2,
          "last_dim_step2": _last_dim_step2, "odd_unit_strides": _odd_unit_strides}  # fmt: skip


def _fused(case: Case, sizes: dict[str, Sizes], first: dict[str, bool]) -> dict[str, Placement]:
    """K and V as views of one buffer with all their heads; q too where it has as many tokens and is of the same dtype."""
    alike = sizes["q"][:-2] == sizes["k"][:-2] and first["q"] == first["k"]
    dense = case.q_format == case.k_format == case.v_format == "dense"
    if case.k_format != case.v_format:
        return {name: _alone(name, "row_padded", sizes[name], first[name]) for name in "qkv"}
    if alike and dense:
        return _views("qkv", sizes, first["k"])
    return {"q": _alone("q", "row_padded", sizes["q"], first["q"]), **_views("kv", sizes, first["k"])}


def _views(names: str, sizes: dict[str, Sizes], heads_first: bool) -> dict[str, Placement]:
    heads = sum(sizes[name][-2] for name in names)
    buffer = (*sizes[names[0]][:-2], heads, max(sizes[name][-1] for name in names))
    strides = contiguous(buffer, heads_first)
    found, start = {}, 0
    for name in names:
        found[name] = Placement(
            buffer=names, span=math.prod(buffer), sizes=sizes[name], strides=strides, offset=start * strides[-2],
            heads_first=heads_first,
        )  # fmt: skip
        start += sizes[name][-2]
    return found


def _swapped(values: Sizes) -> Sizes:
    return (*values[:-3], values[-2], values[-3], values[-1])
