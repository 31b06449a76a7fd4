"""Whether a backend is right on a cell, before it is timed: slices of its result against the float64 oracle.

Forward: for the first and the last sequence and the first and last KV head with their query heads, rows at the start, in
the middle and at the end. Rows [a, b) of a causal sequence see the keys up to row b - 1's own: a smaller problem with the
same bottom-right diagonal, which the oracle solves whole. Backward: every row of one sequence and KV head, in chunks whose
gradients of K and V add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

from attn_backends.bench.cell import Cell
from attn_backends.bench.inputs import Inputs
from attn_backends.conformance.oracle import oracle, oracle_gradients

ROWS = 32  # of each slice
CHUNK = 1024  # rows whose gradients are computed at a time
# Relative error in the Euclidean norm that a result may have, by the dtype of q; a single row may have ten times that.
LIMITS = {"bfloat16": 0.01, "float16": 0.003, "float32": 1e-4}
QUANTIZED_LIMIT = 0.1  # where q is quantised, by the caller or by the backend
WORST_ROW = 10.0


@dataclass(frozen=True, slots=True)
class Deviation:
    """Relative error in the Euclidean norm: of all that was looked at, and of its worst row."""

    whole: float
    worst_row: float

    def within(self, limit: float) -> bool:
        """Whether it is rounding; NaN never is."""
        return self.whole <= limit and self.worst_row <= WORST_ROW * limit

    def words(self, limit: float) -> str:
        """Both, beside what is allowed."""
        return (
            f"relative error {self.whole:.3g}, of the worst row {self.worst_row:.3g}; "
            f"allowed {limit:g} and {WORST_ROW * limit:g}"
        )

    def to_json(self, limit: float) -> dict[str, float | None]:
        """Three digits; None for NaN and infinity."""
        both = {"whole": self.whole, "worst_row": self.worst_row}
        rounded = {name: float(f"{value:.3g}") if math.isfinite(value) else None for name, value in both.items()}
        return {**rounded, "limit": limit}


@dataclass(frozen=True, slots=True, eq=False)
class _Sequence:
    """One sequence and KV head in float64: q [Sq, group, D], k, v [Sk, D]; `rows` finds its rows in a batch's tensor."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    index: int
    start: int  # of its rows in a packed tensor
    head: int
    group: int

    def part_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its rows of a tensor shaped as q: [Sq, group, D]."""
        heads = slice(self.head * self.group, (self.head + 1) * self.group)
        if tensor.dim() == 3:
            return tensor[self.start : self.start + len(self.q), heads]
        return tensor[self.index, :, heads]


_Part = tuple[_Sequence, slice, torch.Tensor]  # of which rows, [rows, group, D] in float64
_exact: WeakKeyDictionary[Inputs, list[_Part]] = WeakKeyDictionary()  # every backend of a cell is held against the same


def limit_of(cell: Cell, numerics: str) -> float:
    """How far a backend of these numerics may be from the exact result."""
    quantised = numerics != "exact" or cell.store.q_format != "dense"
    return QUANTIZED_LIMIT if quantised else LIMITS[cell.dtype]


def forward_deviation(cell: Cell, inputs: Inputs, out: torch.Tensor) -> Deviation:
    """Of an output, shaped as q."""
    if inputs not in _exact:
        _exact[inputs] = _exact_parts(cell, inputs)
    return _deviation([(sequence.part_of(out)[part], right) for sequence, part, right in _exact[inputs]])


def backward_deviation(cell: Cell, inputs: Inputs, gradients: tuple[torch.Tensor, ...]) -> Deviation:
    """Of (dq, dk, dv), each shaped as its tensor; the worst of the three."""
    sequence = next(_sequences(cell, inputs))
    if inputs.d_out is None:
        raise ValueError("a forward cell has no gradients")
    exact = _exact_gradients(cell, sequence, sequence.part_of(inputs.d_out).double())
    dq, dk, dv = gradients
    found = (sequence.part_of(dq), dk[sequence.index, :, sequence.head], dv[sequence.index, :, sequence.head])
    each = [_deviation([(got, want)]) for got, want in zip(found, exact, strict=True)]
    return Deviation(_worst([one.whole for one in each]), _worst([one.worst_row for one in each]))


def _exact_parts(cell: Cell, inputs: Inputs) -> list[_Part]:
    found = []
    for sequence in _sequences(cell, inputs):
        rows = len(sequence.q)
        for first in sorted({0, max(0, rows // 2 - ROWS // 2), max(0, rows - ROWS)}):
            part = slice(first, min(rows, first + ROWS))
            found.append((sequence, part, _exact_rows(cell, sequence, part)))
    return found


def _sequences(cell: Cell, inputs: Inputs) -> Iterator[_Sequence]:
    """The first and the last sequence, each with the first and the last KV head."""
    group = cell.num_q_heads // cell.num_kv_heads
    lengths = cell.lengths
    for index in sorted({0, cell.batch - 1}):
        start = sum(new for new, _ in lengths[:index])
        for head in sorted({0, cell.num_kv_heads - 1}):
            k, v = (_keys(cell, inputs, name, index, head) for name in "kv")
            heads = slice(head * group, (head + 1) * group)
            q = inputs.q[start : start + lengths[index][0]] if cell.packed else inputs.q[index]
            scale = _descale(inputs, "q", q, head, group)
            yield _Sequence(q[:, heads].detach().double() * scale, k, v, index, start, head, group)


def _keys(cell: Cell, inputs: Inputs, name: str, index: int, head: int) -> torch.Tensor:
    """K or V of one sequence and head as the numbers that they stand for, [Sk, D]."""
    whole = inputs.k if name == "k" else inputs.v
    descale = inputs.arguments.get(f"{name}_descale")
    if cell.page_size is None:
        values = whole[index, :, head].detach().double()
        return values * _descale(inputs, name, whole, head, 1)
    length = cell.lengths[index][1]
    pages = inputs.arguments["block_table"][index, : -(-length // cell.page_size)].long()
    values = whole[pages, :, head].double()
    if descale is not None and descale.dim() == 3:
        values = values * descale[pages, :, head].double().unsqueeze(-1)
    else:
        values = values * _descale(inputs, name, whole, head, 1)
    return values.reshape(-1, cell.head_dim)[:length]


def _descale(inputs: Inputs, name: str, tensor: torch.Tensor, head: int, group: int) -> torch.Tensor:
    """The descale of a head (or of a group of query heads, [group, 1]) that is one per tensor or head; 1 without."""
    descale: torch.Tensor | None = inputs.arguments.get(f"{name}_descale")
    if descale is None:
        return torch.ones((), dtype=torch.float64, device=tensor.device)
    if descale.numel() == 1:
        return descale.double().reshape(())
    return descale[head * group : (head + 1) * group].double().unsqueeze(-1)


def _exact_rows(cell: Cell, sequence: _Sequence, rows: slice) -> torch.Tensor:
    """The exact output of some rows, [rows, group, D]."""
    q, k, v = _problem(cell, sequence, rows)
    return oracle(q, k, v, **cell.scalars).out[0]


def _exact_gradients(cell: Cell, sequence: _Sequence, d_out: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """dq [Sq, group, D], dk, dv [Sk, D], a chunk of rows at a time."""
    dq, dk, dv = (torch.zeros_like(tensor) for tensor in (sequence.q, sequence.k, sequence.v))
    for first in range(0, len(sequence.q), CHUNK):
        rows = slice(first, min(len(sequence.q), first + CHUNK))
        q, k, v = _problem(cell, sequence, rows)
        found = oracle_gradients(q, k, v, d_out[rows].unsqueeze(0), **cell.scalars)
        dq[rows] = found["q"][0]
        keys = k.shape[1]
        dk[:keys] += found["k"][0, :, 0]
        dv[:keys] += found["v"][0, :, 0]
    return dq, dk, dv


def _problem(cell: Cell, sequence: _Sequence, rows: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Some rows as a call of their own: [1, rows, group, D], [1, keys, 1, D], the same diagonal."""
    end = len(sequence.k)
    if cell.causal:
        end -= len(sequence.q) - rows.stop
    return (
        sequence.q[rows].unsqueeze(0),
        sequence.k[:end].unsqueeze(0).unsqueeze(2),
        sequence.v[:end].unsqueeze(0).unsqueeze(2),
    )


def _worst(values: list[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values)


def _deviation(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Deviation:
    """Of (got, exact) pairs of equal shape; a row is the last dim. One NaN makes both NaN."""
    wrong = torch.cat([(got.detach().double() - exact).reshape(-1, exact.shape[-1]) for got, exact in pairs])
    right = torch.cat([exact.reshape(-1, exact.shape[-1]) for _, exact in pairs])
    usual = right.norm() / max(1, len(right)) ** 0.5  # a row that happens to be tiny is measured by the usual size
    rows = wrong.norm(dim=-1) / torch.maximum(right.norm(dim=-1), usual * 0.1)
    return Deviation(float(wrong.norm() / right.norm()), float(rows.max()))
