"""Bugs in who sees whom: causal, windows, masks, their composition, empty rows."""

# ruff: noqa: ARG001  # a mutant has the signature of its seam
from __future__ import annotations

import dataclasses

import torch

from attn_backends.block_mask import BlockMask
from attn_backends.call import Call
from attn_backends.conformance.controls.places import Place
from attn_backends.conformance.mutants import hiding, scoring, summing
from attn_backends.conformance.mutants.mutant import plant
from attn_backends.conformance.mutants.rereading import packed_strides, reread
from attn_backends.conformance.mutants.summing import State

Maybe = torch.Tensor | None
Pair = tuple[torch.Tensor, torch.Tensor]


@plant("CAUSAL-1", "diagonal", needs=("causal",))
def diagonal_always_top_left(call: Call, place: Place) -> int:
    """The diagonal starts at key 0: right as long as Sq = Sk."""
    return 0


@plant("CAUSAL-1", "shown_by_causal", needs=("causal",))
def causal_sees_the_next_key(distance: torch.Tensor, call: Call, place: Place) -> Maybe:
    """j <= i + 1."""
    return distance <= 1 if call.causal else None


@plant("CAUSAL-1", "shown_by_causal", needs=("causal",))
def causal_clamped_to_the_first_key(distance: torch.Tensor, call: Call, place: Place) -> Maybe:
    """With Sq > Sk, rows before the first key see it all the same."""
    if not call.causal:
        return None
    return (distance <= 0) | (torch.arange(distance.shape[1]) == 0)


@plant(
    "CAUSAL-1", "shown_by_causal", needs=("causal",),
    proof="A single query under bottom_right stands at the last key, and no key lies behind it: causal hides nothing.",
)  # fmt: skip
def causal_skipped_for_one_query(distance: torch.Tensor, call: Call, place: Place) -> Maybe:
    """Decode takes the path without causal, where the diagonal is bottom-right."""
    if place.seq_q == 1 and call.causal_alignment == "bottom_right":
        return None
    return hiding.shown_by_causal(distance, call, place)


@plant("CAUSAL-2", "diagonal", needs=("causal_alignment",))
def alignment_ignored(call: Call, place: Place) -> int:
    """Always bottom-right."""
    return place.seq_k - place.seq_q


@plant("CAUSAL-2", "shown_by_window", needs=("causal_alignment", "window"))
def window_keeps_bottom_right(distance: torch.Tensor, call: Call, place: Place) -> Maybe:
    """top_left moves causal, and the window stays where it was."""
    moved = 0 if call.causal_alignment == "bottom_right" else place.seq_k - place.seq_q
    return hiding.shown_by_window(distance - moved, call, place)


@plant("CAUSAL-2", "alibi", needs=("causal_alignment", "alibi"))
def alibi_keeps_bottom_right(distance: torch.Tensor, call: Call, place: Place, work: torch.dtype) -> Maybe:
    """top_left moves causal and windows, and ALiBi's distances stay where they were."""
    moved = 0 if call.causal_alignment == "bottom_right" else place.seq_k - place.seq_q
    return scoring.alibi(distance - moved, call, place, work)


@plant("WINDOW-1", "shown_by_window", needs=("window",))
def window_left_counts_oneself(distance: torch.Tensor, call: Call, place: Place) -> Maybe:
    """window_left tokens in all, oneself included: one too few."""
    if call.window_left < 1:
        return hiding.shown_by_window(distance, call, place)
    return _within(distance, call.window_left - 1, call.window_right, call, place)


@plant("WINDOW-1", "shown_by_window", needs=("window",))
def window_right_of_zero_is_none(distance: torch.Tensor, call: Call, place: Place) -> Maybe:
    """`if window_right > 0`: 0, which leaves oneself, is taken for no bound."""
    right = call.window_right if call.window_right > 0 else -1
    return _within(distance, call.window_left, right, call, place)


@plant("WINDOW-1", "shown_by_window", needs=("window",))
def window_in_whole_tiles(distance: torch.Tensor, call: Call, place: Place) -> Maybe:
    """Tiles of 16 keys outside the window are skipped; inside the first one nothing is hidden."""
    if call.window_left < 0:
        return hiding.shown_by_window(distance, call, place)
    key = torch.arange(distance.shape[1])
    return _within(distance + (15 - key % 16), call.window_left, -1, call, place) & _within(
        distance, -1, call.window_right, call, place
    )


@plant("WINDOW-2", "shown_by_causal", needs=("causal", "window"))
def window_right_instead_of_causal(distance: torch.Tensor, call: Call, place: Place) -> Maybe:
    """The right side of the window stands where causal stood, so that causal rows see that far ahead."""
    return None if call.window_right >= 0 else hiding.shown_by_causal(distance, call, place)


@plant("WINDOW-2", "shown_by_window", needs=("window",))
def window_from_the_top_left(distance: torch.Tensor, call: Call, place: Place) -> Maybe:
    """The window hangs on i = j while causal has its offset."""
    rows, keys = distance.shape
    return hiding.shown_by_window(torch.arange(keys) - torch.arange(rows).unsqueeze(1), call, place)


@plant("WINDOW-2", "shown_by_window", needs=("window",))
def window_ignored_in_decode(distance: torch.Tensor, call: Call, place: Place) -> Maybe:
    """One query sees the whole cache."""
    return None if place.seq_q == 1 else hiding.shown_by_window(distance, call, place)


def _within(distance: torch.Tensor, left: int, right: int, call: Call, place: Place) -> torch.Tensor:
    seen = torch.ones_like(distance, dtype=torch.bool)
    seen = seen if left < 0 else seen & (distance >= -left)
    return seen if right < 0 else seen & (distance <= right)


@plant("MASK-1", "own_mask", needs=("mask",))
def mask_taken_for_packed(mask: torch.Tensor, place: Place) -> torch.Tensor:
    """A mask is read as if nothing lay between its elements, whatever its strides."""
    return hiding.own_mask(mask if mask.is_contiguous() else reread(mask, packed_strides(tuple(mask.shape))), place)


@plant("MASK-1", "own_mask", needs=("mask",))
def mask_of_one_row_for_the_first(mask: torch.Tensor, place: Place) -> torch.Tensor:
    """One row for all queries is padded to their number: the others see everything."""
    own = hiding.own_mask(mask, place)
    if own.shape[1] > 1 or place.seq_q < 2:
        return own
    others = own.new_full((own.shape[0], place.seq_q - 1, own.shape[2]), own.dtype == torch.bool)
    return torch.cat([own, others], dim=1)


@plant("MASK-1", "own_mask", needs=("mask",))
def mask_of_sequence_zero(mask: torch.Tensor, place: Place) -> torch.Tensor:
    """The batch index of the mask is left at 0."""
    return hiding.own_mask(mask[:1] if mask.dim() == 4 else mask, place)


@plant("MASK-2", "composed", needs=("causal", "mask"))
def mask_replaces_causal(parts: list[torch.Tensor]) -> torch.Tensor:
    """The last rule wins: a mask stands instead of causal and window."""
    return parts[-1].expand(torch.broadcast_shapes(parts[0].shape, parts[-1].shape))


@plant("MASK-2", "composed", needs=("causal", "mask"))
def composed_by_union(parts: list[torch.Tensor]) -> torch.Tensor:
    """What any rule shows is seen."""
    if len(parts) < 3:
        return hiding.composed(parts)
    seen = parts[1]
    for part in parts[2:]:
        seen = seen | part
    return parts[0] & seen


@plant("MASK-2", "shown_by_blocks", needs=("block_mask",))
def token_mask_of_blocks_ignored(call: Call, place: Place) -> Maybe:
    """A visible block is visible throughout: the token mask inside is not looked at."""
    if call.block_mask is None:
        return None
    bare = BlockMask(call.block_mask.blocks, call.block_mask.block_size)
    return hiding.shown_by_blocks(dataclasses.replace(call, block_mask=bare), place)


@plant("MASK-3", "finished")
def empty_rows_are_nan(state: State) -> Pair:
    """0 / 0."""
    acc, total, largest = state
    return acc / total.unsqueeze(-1), torch.where(total == 0.0, summing.MINUS_INF, largest + torch.log(total))


@plant("MASK-3", "finished")
def empty_rows_have_a_finite_lse(state: State) -> Pair:
    """-1e30 stands for -inf in the LSE of a row that sees nothing."""
    out, lse = summing.finished(state)
    return out, lse.masked_fill(lse == summing.MINUS_INF, -1e30)


@plant("MASK-3", "composed")
def empty_rows_see_everything(parts: list[torch.Tensor]) -> torch.Tensor:
    """All scores alike at the lowest number: a row that sees nothing gets the mean of v."""
    seen = hiding.composed(parts)
    return seen | ~seen.any(dim=-1, keepdim=True)


@plant("MASK-4", "shown_by_blocks", needs=("block_mask",))
def blocks_of_head_zero(call: Call, place: Place) -> Maybe:
    """One block mask for all heads."""
    seen = hiding.shown_by_blocks(call, place)
    return None if seen is None else seen[:1]


@plant("MASK-4", "shown_by_blocks", needs=("block_mask",))
def blocks_count_from_the_end(call: Call, place: Place) -> Maybe:
    """Key blocks are aligned to the last key, as causal is."""
    seen = hiding.shown_by_blocks(call, place)
    if seen is None or call.block_mask is None or place.seq_k == 0:
        return seen
    shift = -place.seq_k % call.block_mask.block_k
    return seen[..., (torch.arange(place.seq_k) + shift).clamp(max=place.seq_k - 1)]


@plant("MASK-4", "shown_by_blocks", needs=("block_mask",))
def blocks_are_square(call: Call, place: Place) -> Maybe:
    """Queries are counted in blocks of as many as there are keys in one."""
    if call.block_mask is None:
        return None
    blocks = call.block_mask.blocks[place.index if call.block_mask.blocks.shape[0] > 1 else 0]
    row = (torch.arange(place.seq_q) // call.block_mask.block_k).clamp(max=blocks.shape[1] - 1)
    seen = blocks[:, row][:, :, torch.arange(place.seq_k) // call.block_mask.block_k]
    inside = call.block_mask.mask
    return seen if inside is None else seen & hiding.own_mask(inside, place)
