"""`BlockMask`: what it covers token by token, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attn_backends.block_mask import BlockMask, check_broadcast
from attn_backends.errors import RequestError

BLOCKS = torch.tensor([[True, False, True], [False, True, False]])[None, None]


@pytest.mark.parametrize(("block_size", "sizes"), [(2, (4, 6)), (2, (3, 5)), ((3, 2), (5, 6)), ((1, 4), (2, 9))])
def test_dense_repeats_every_block_over_its_tokens(block_size: Any, sizes: tuple[int, int]) -> None:
    """visible[i, j] = blocks[i // block_q, j // block_k], also where the last blocks are cut."""
    mask = BlockMask(BLOCKS, block_size)
    dense = mask.dense(*sizes)
    assert dense.shape == (1, 1, *sizes)
    for i in range(sizes[0]):
        for j in range(sizes[1]):
            assert dense[0, 0, i, j] == BLOCKS[0, 0, i // mask.block_q, j // mask.block_k]


@pytest.mark.parametrize("shape", [(4, 6), (4, 1), (1, 6), (2, 4, 6), (2, 1, 4, 6), (1, 2, 1, 6)])
def test_the_mask_is_intersected_inside_visible_blocks(shape: tuple[int, ...]) -> None:
    """A broadcast mask of 2 to 4 dims takes keys away, and brings none back."""
    fine = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5
    dense = BlockMask(BLOCKS, 2, fine).dense(3, 5)
    expected = BlockMask(BLOCKS, 2).dense(4, 6) & fine
    assert torch.equal(dense, expected[..., :3, :5])


def test_one_sequence_reads_its_own_entry_and_shares_the_broadcast_one() -> None:
    """Batch dims of size 1 are shared by every sequence; others are picked."""
    blocks = torch.stack([BLOCKS[0], ~BLOCKS[0]])
    fine = torch.rand(2, 1, 4, 6, generator=torch.Generator().manual_seed(0)) < 0.5
    for index in range(2):
        assert torch.equal(BlockMask(blocks, 2).of_sequence(index, 3, 5), BlockMask(blocks, 2).dense(3, 5)[index])
        assert torch.equal(BlockMask(BLOCKS, 2).of_sequence(index, 3, 5), BlockMask(BLOCKS, 2).dense(3, 5)[0])
        both = BlockMask(BLOCKS, 2, fine)
        assert torch.equal(both.of_sequence(index, 3, 5), both.dense(3, 5)[index])


def test_dense_is_new_memory() -> None:
    """Writing to the result leaves the mask alone, also where a block is one token."""
    mask = BlockMask(BLOCKS.clone(), 1)
    mask.dense(2, 3).fill_(True)
    assert torch.equal(mask.blocks, BLOCKS)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((BLOCKS.int(), 2), ["blocks", "torch.int32", "torch.bool"]),
        ((BLOCKS[0], 2), ["blocks", "(1, 2, 3)", "4 dims"]),
        ((BLOCKS, 0), ["block_size", "0"]),
        ((BLOCKS, (2, -1)), ["block_size", "(2, -1)"]),
        ((BLOCKS, (2, 2, 2)), ["block_size"]),
        ((BLOCKS, True), ["block_size", "True"]),
        ((BLOCKS, 2.0), ["block_size", "2.0"]),
        ((BLOCKS, 2, torch.zeros(4, 6)), ["mask", "torch.float32", "torch.bool"]),
        ((BLOCKS, 2, torch.ones(6, dtype=torch.bool)), ["mask", "(6,)"]),
        (([[True]], 2), ["blocks", "list"]),
    ],
)
def test_an_illegal_mask_is_a_request_error(arguments: Any, text: list[str]) -> None:
    """The error names field, value and what is allowed."""
    with pytest.raises(RequestError) as caught:
        BlockMask(*arguments)
    for part in text:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"batch": 3, "num_q_heads": 4, "seq_q": 3, "seq_k": 5}, None),
        ({"batch": 3, "num_q_heads": 4, "seq_q": 5, "seq_k": 5}, "(1, 1, 2, 3)"),
        ({"batch": 3, "num_q_heads": 4, "seq_q": 4, "seq_k": 4}, "dim 3"),
    ],
)
def test_check_compares_with_the_sizes_of_a_call(sizes: dict[str, int], text: str | None) -> None:
    """The number of blocks is that of the call's lengths, no more and no fewer."""
    mask = BlockMask(BLOCKS, 2)
    if text is None:
        mask.check(**sizes)
        return
    with pytest.raises(RequestError) as caught:
        mask.check(**sizes)
    assert text in str(caught.value)


def test_check_refuses_other_batches_heads_and_masks() -> None:
    """Batch and heads are those of the call or 1; the fine mask broadcasts."""
    full = {"batch": 2, "num_q_heads": 2, "seq_q": 4, "seq_k": 6}
    with pytest.raises(RequestError, match="dim 0"):
        BlockMask(BLOCKS.expand(3, 2, 2, 3), 2).check(**full)
    with pytest.raises(RequestError, match="dim 1"):
        BlockMask(BLOCKS.expand(2, 4, 2, 3), 2).check(**full)
    with pytest.raises(RequestError, match="mask"):
        BlockMask(BLOCKS, 2, torch.ones(4, 5, dtype=torch.bool)).check(**full)
    with pytest.raises(RequestError, match="cover"):
        BlockMask(BLOCKS, 2).dense(5, 6)


@pytest.mark.parametrize("shape", [(4, 6), (1, 1), (2, 4, 1), (3, 2, 4, 6), (1, 1, 1, 6)])
def test_masks_that_broadcast_pass(shape: tuple[int, ...]) -> None:
    """From the right, dims of size 1 or the call's own."""
    check_broadcast("attn_mask", shape, (3, 2, 4, 6))


@pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 1, 4, 6), (1, 3, 2, 4, 6), (4, 7)])
def test_masks_that_do_not_broadcast_are_request_errors(shape: tuple[int, ...]) -> None:
    """Wrong rank or wrong size."""
    with pytest.raises(RequestError, match="attn_mask"):
        check_broadcast("attn_mask", shape, (3, 2, 4, 6))
