"""Bugs around the arithmetic: inputs changed, outputs shared, other dtypes, other bits from one call to the next."""

# ruff: noqa: ARG001  # a mutant has the signature of its seam
from __future__ import annotations

import itertools

import torch

from attn_backends.call import Call
from attn_backends.conformance.controls.places import Place, places
from attn_backends.conformance.mutants import reading, summing, writing
from attn_backends.conformance.mutants.mutant import plant

_turns = itertools.count()


@plant("PURITY-1", "left")
def q_scaled_in_place(call: Call) -> None:
    """q is left multiplied by 2: the scale was folded into it, and not taken back."""
    if call.q.element_size() > 1:
        call.q.detach().mul_(2.0)


@plant("PURITY-1", "left", needs=("bias",))
def mask_filled_in_place(call: Call) -> None:
    """-inf in a float mask is replaced by -1e4 where it lies."""
    if call.attn_mask is not None and call.attn_mask.dtype != torch.bool:
        call.attn_mask.detach().clamp_(min=-1e4)


@plant("PURITY-1", "left")
def lengths_rounded_in_place(call: Call) -> None:
    """Lengths are rounded up to tiles of 16 where they lie."""
    if call.seq_lens is not None:
        call.seq_lens.add_(15).div_(16, rounding_mode="floor").mul_(16)


_kept: dict[object, torch.Tensor] = {}


@plant("PURITY-2", "left")
def out_is_a_kept_buffer(call: Call) -> None:
    """The output lives in a buffer that the next call of this shape writes again."""
    buffer = _kept.setdefault((call.out.shape, call.out.dtype), torch.empty_like(call.out))
    call.out = buffer.copy_(call.out)


@plant("PURITY-2", "left", needs=("lse",))
def lse_is_a_kept_buffer(call: Call) -> None:
    """The LSE lives in a buffer that the next call of this shape writes again."""
    if call.lse is not None:
        call.lse = _kept.setdefault(("lse", call.lse.shape), torch.empty_like(call.lse)).copy_(call.lse)


@plant("PURITY-2", "left")
def one_key_is_its_value(call: Call) -> None:
    """A softmax over one key is 1: v itself is handed out, no byte of it copied."""
    plain = call.seq_lens is call.cu_seqlens_k is call.block_table is call.sinks is call.attn_mask is None
    if not plain or call.causal or call.dropout_p or call.block_mask is not None or call.v.dtype != call.out.dtype:
        return
    tokens = 2 if call.layout == "bhsd" else 1
    if call.v.shape[tokens] == 1 and call.v.shape[3 - tokens] == call.out.shape[3 - tokens]:
        call.out = call.v.detach().expand(call.out.shape)


@plant("PURITY-3", "left", needs=("lse",))
def lse_in_float64(call: Call) -> None:
    """The LSE comes back in float64."""
    if call.lse is not None:
        call.lse = call.lse.to(torch.float64)


@plant("PURITY-3", "left", needs=("lse",))
def lse_keeps_a_dim(call: Call) -> None:
    """The LSE comes back as [..., 1]."""
    if call.lse is not None:
        call.lse = call.lse.unsqueeze(-1)


@plant("PURITY-4", "stored")
def empty_rows_unwritten(call: Call, place: Place, out: torch.Tensor, lse: torch.Tensor) -> None:
    """A row that sees nothing is skipped, and the memory holds what it held: here 1."""
    some = lse != summing.MINUS_INF
    writing.stored(call, place, torch.where(some.unsqueeze(-1), out, 1.0), lse)


@plant("PURITY-4", "stored", needs=("lse",))
def lse_of_empty_rows_unwritten(call: Call, place: Place, out: torch.Tensor, lse: torch.Tensor) -> None:
    """The output of a row that sees nothing is written, its LSE is not, and the memory holds what it held: here 1."""
    writing.stored(call, place, out, lse.masked_fill(lse == summing.MINUS_INF, 1.0))


@plant("DETERMINISM-1", "finished", needs=("deterministic",))
def last_bit_differs(state: summing.State) -> tuple[torch.Tensor, torch.Tensor]:
    """Splits finish in another order every time: the last bits differ."""
    out, lse = summing.finished(state)
    other_order = next(_turns) * 0x9E3779B1 >> 16 & 1  # no period that a batch could have
    return (torch.nextafter(out, torch.zeros_like(out)), lse) if other_order else (out, lse)


@plant("DETERMINISM-2", "over_rows", needs=("deterministic", "backward"))
def atomic_adds_in_another_order(weights: torch.Tensor) -> list[slice]:
    """dK and dV are added up by row blocks that come in another order every time."""
    starts = list(range(0, weights.shape[2], 2))
    turn = next(_turns) % max(len(starts), 1)
    return [slice(start, start + 2) for start in starts[turn:] + starts[:turn]]


@plant("DETERMINISM-2", "over_rows", needs=("deterministic", "backward"))
def the_last_two_adds_race(weights: torch.Tensor) -> list[slice]:
    """dK and dV are added up by blocks of 64 rows, and the last two come as they like."""
    starts = list(range(0, weights.shape[2], 64))
    swapped = next(_turns) * 0x9E3779B1 >> 16 & 1
    ordered = [*starts[:-2], *reversed(starts[-2:])] if swapped else starts
    return [slice(start, start + 64) for start in ordered]


@plant("BATCHINV-1", "splits", needs=("batch_invariant",))
def splits_by_the_batch(call: Call, seq_k: int) -> list[tuple[int, int]]:
    """The keys are cut the finer, the fewer sequences there are."""
    batch = call.q.shape[0] if call.cu_seqlens_q is None else len(call.cu_seqlens_q) - 1
    step = max(4, 2 * batch)
    return [(start, min(start + step, seq_k)) for start in range(0, seq_k, step)]


@plant("BATCHINV-1", "splits", needs=("batch_invariant",))
def long_splits_by_the_batch(call: Call, seq_k: int) -> list[tuple[int, int]]:
    """From 1024 keys on they are cut the finer, the fewer sequences there are: below, nothing shows."""
    if seq_k < 1024:
        return summing.splits(call, seq_k)
    batch = call.q.shape[0] if call.cu_seqlens_q is None else len(call.cu_seqlens_q) - 1
    step = 64 * max(1, min(batch, 16))
    return [(start, min(start + step, seq_k)) for start in range(0, seq_k, step)]


@plant("DOWNCAST-1", "values_of")
def products_in_bfloat16(rows: torch.Tensor, scale: torch.Tensor | None, work: torch.dtype) -> torch.Tensor:
    """float32 is rounded to bfloat16 on its way into the product."""
    values = reading.values_of(rows, scale, work)
    return values.to(torch.bfloat16).to(work) if rows.dtype == torch.float32 else values


@plant("DOWNCAST-1", "work_dtype")
def float64_in_float32(call: Call) -> torch.dtype:
    """float64 is computed as float32."""
    return torch.float32


@plant("DOWNCAST-1", "finished")
def output_rounded_to_half(state: summing.State) -> tuple[torch.Tensor, torch.Tensor]:
    """The accumulator is float16, whatever came in."""
    out, lse = summing.finished(state)
    return out.to(torch.float16).to(out.dtype), lse


_splits: dict[object, list[tuple[int, int]]] = {}


@plant("COMPILE-1", "splits", needs=("compile",))
def splits_of_the_first_shape(call: Call, seq_k: int) -> list[tuple[int, int]]:
    """The plan of the first call is baked in: later ones with more keys lose what it did not reach."""
    first = _splits.setdefault((call.layout, call.q.shape[-1], call.causal, call.softcap), summing.splits(call, seq_k))
    return [(start, min(stop, seq_k)) for start, stop in first if start < seq_k]


_captured: dict[object, list[Place]] = {}


@plant("GRAPH-1", "places", needs=("graph",), hardware="cuda", graph=["never", "always"])
def lengths_of_the_capture(call: Call) -> list[Place]:
    """Lengths are read before the graph is captured, and never again."""
    found = places(call) if call.graph == "never" else _captured.get((call.q.shape, call.k.shape))
    return found or _captured.setdefault((call.q.shape, call.k.shape), places(call))


@plant("GRAPH-2", "entered", needs=("graph",), hardware="cuda", graph=["never", "always"])
def lengths_read_on_the_host(call: Call) -> None:
    """A graph level is declared, and the forward waits for the device."""
    writing.entered(call)
    call.q.flatten()[:1].to(torch.float64).tolist()
