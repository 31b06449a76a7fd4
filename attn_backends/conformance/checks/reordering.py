"""What order must not matter: of keys, of sequences in the batch, of pages in the pool, of the parts of a split."""

from __future__ import annotations

import torch

import attn_backends
from attn_backends.conformance.case import Case
from attn_backends.conformance.case_request import needs_backward
from attn_backends.conformance.checks.calling import Answer, attend
from attn_backends.conformance.checks.check import Check, Context, Finding
from attn_backends.conformance.checks.comparing import bit_equal, near
from attn_backends.conformance.checks.repeatable import unchanged
from attn_backends.conformance.checks.seen import logical_lse, logical_out, size_of
from attn_backends.conformance.drawing import Logical, draw, generator
from attn_backends.conformance.inputs import store
from attn_backends.conformance.lengths import Lengths


def keys(context: Context, case: Case) -> Finding:
    """Keys in another order, within each sequence."""
    drawn = draw(case)
    order = torch.arange(case.seq_k).repeat(case.batch, 1)
    for sequence, length in enumerate(drawn.lengths.k):
        order[sequence, :length] = torch.randperm(length, generator=generator(case, f"order{sequence}"))
    at = torch.arange(case.batch)[:, None], order
    turned = drawn.replace(k=drawn.k[at], v=drawn.v[at])
    inputs = store(drawn, context.device)
    want, got = attend(context, inputs), attend(context, store(turned, context.device))
    return near(context, got, want, inputs, "the order of keys", size_of(drawn))


def batch_slots(context: Context, case: Case) -> Finding:
    """Sequences at other slots of the batch: the same rows, to the last bit where the batch may not matter."""
    drawn = draw(case)
    order = torch.arange(case.batch).roll(1)
    turned = reordered(drawn, order)
    inputs = store(drawn, context.device)
    first, second = attend(context, inputs), attend(context, store(turned, context.device))
    want, got = _logical(first, drawn, order), _logical(second, turned, torch.arange(case.batch))
    if case.batch_invariant:
        return bit_equal(got.parts(), want.parts(), "the slot in the batch")
    return near(context, got, want, inputs, "the slot in the batch", size_of(drawn))


def reordered(logical: Logical, order: torch.Tensor) -> Logical:
    """The sequences of a batch in another order, with everything that is theirs."""
    picked = order.tolist()
    lengths = Lengths(
        q=tuple(logical.lengths.q[index] for index in picked), k=tuple(logical.lengths.k[index] for index in picked)
    )
    batch = logical.case.batch

    def turned(tensor: torch.Tensor | None, dims: int) -> torch.Tensor | None:
        own = tensor is not None and tensor.dim() == dims and tensor.shape[0] == batch
        return tensor[order] if own and tensor is not None else tensor

    return logical.replace(
        lengths=lengths, q=logical.q[order], k=logical.k[order], v=logical.v[order], mask=turned(logical.mask, 4),
        blocks=turned(logical.blocks, 4), slopes=turned(logical.slopes, 2),
    )  # fmt: skip


def _logical(answer: Answer, logical: Logical, order: torch.Tensor) -> Answer:
    """The answer in logical order, sequences picked."""
    lse = None if answer.lse is None else logical_lse(answer.lse, logical)[order]
    return Answer(out=logical_out(answer.out, logical)[order], lse=lse)


def pages(context: Context, case: Case) -> Finding:
    """The same tokens on other pages: the same bits."""
    drawn = draw(case)
    ordered, shuffled = (store(drawn.replace(pages=seed), context.device) for seed in (0, 1))
    want, got = attend(context, ordered), attend(context, shuffled)
    return unchanged(
        case, want.parts(), got.parts(), "the order of pages",
        again=lambda: attend(context, ordered).parts(),
        within=lambda: near(context, got, want, ordered, "the order of pages", size_of(drawn)),
    )  # fmt: skip


def split(context: Context, case: Case) -> Finding:
    """Keys in two parts, each attended to, merged by their LSE: the whole. A sink belongs to the first part."""
    drawn = draw(case)
    middle = max(case.seq_k // 3, 1)
    whole = attend(context, store(drawn, context.device))
    parts = []
    for start, end, sinks in ((0, middle, case.sinks), (middle, case.seq_k, False)):
        part = case.replace(seq_k=end - start, sinks=sinks)
        piece = Logical(
            case=part, lengths=Lengths(q=drawn.lengths.q, k=(end - start,) * case.batch), q=drawn.q,
            k=drawn.k[:, start:end], v=drawn.v[:, start:end], sinks=drawn.sinks if sinks else None,
        )  # fmt: skip
        parts.append(attend(context, store(piece, context.device)))
    first, second = parts
    if first.lse is None or second.lse is None:
        return Finding(ok=False, message="no lse to merge by")
    out, lse = attn_backends.merge_states(first.out, first.lse, second.out, second.lse, layout=case.layout)
    inputs = store(drawn, context.device)
    merged = Answer(out=out, lse=lse)
    return near(context, merged, whole, inputs, "a split of the keys", size_of(drawn), _merging_costs(first, second))


def _merging_costs(first: Answer, second: Answer) -> float:
    """What float32 LSEs cost a merge, whatever the dtype: their rounding moves the two weights of a row."""
    largest = [float(part.lse.nan_to_num(neginf=0.0).abs().max()) for part in (first, second) if part.lse is not None]
    moved = torch.finfo(torch.float32).eps / 2 * sum(1.0 + lse for lse in largest)
    return moved * float((first.out.to(torch.float64) - second.out.to(torch.float64)).abs().max())


def _no_diagonal(case: Case) -> bool:
    return not (case.causal or case.left >= 0 or case.right >= 0 or case.alibi)


def _free(case: Case) -> bool:
    """Nothing speaks of a key by its place."""
    placed = case.mask != "none" or case.block_mask is not None or case.dropout > 0
    return (
        _no_diagonal(case)
        and not placed
        and case.values != "large"
        and not needs_backward(case)
        and case.seq_k > 1
        and case.seq_q > 0
    )


def _by_token(case: Case) -> bool:
    return not case.granularities.isdisjoint({"per_token_head", "block"})


def _by_sequence(case: Case) -> bool:
    """Descales that are a sequence's own do not move with it."""
    return _by_token(case) or ("per_head" in case.granularities and case.seed % 2 == 1)


CHECKS = (
    Check(
        name="key_order", kind="property", run=keys, clauses=("SCORE-1",),
        applies=lambda case: _free(case) and not _by_token(case),
    ),
    Check(
        name="batch_slots", kind="property", run=batch_slots, clauses=("VARLEN-1", "DENSELEN-1", "BATCHINV-1", "PAGED-1"),
        narrowed=lambda case: tuple(
            clause
            for clause, shown in (
                ("VARLEN-1", case.layout == "thd"), ("DENSELEN-1", case.ragged and case.layout != "thd"),
                ("BATCHINV-1", case.batch_invariant), ("PAGED-1", case.page_size is not None),
            )
            if shown
        ),
        applies=lambda case: case.batch > 1 and case.dropout == 0 and (case.values != "large" or case.batch_invariant) and not _by_sequence(case) and not needs_backward(case)
        and (case.ragged or case.batch_invariant or case.page_size is not None or case.layout == "thd"),
    ),
    Check(
        name="page_order", kind="property", run=pages, clauses=("PAGED-1",),
        applies=lambda case: case.page_size is not None and "per_token_head" not in case.granularities,
    ),
    Check(
        name="split", kind="property", run=split, clauses=("MERGE-3", "LSE-1"),
        applies=lambda case: _free(case) and case.lse and not case.ragged and case.page_size is None
        and case.granularity == "none",
    ),
)  # fmt: skip
