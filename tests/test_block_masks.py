"""Ready-made block masks say token by token what their pattern says."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from attn_backends import block_masks  # noqa: E402
from attn_backends.errors import RequestError  # noqa: E402

BLOCK_SIZES = [1, 16, (8, 32), 100]


def pattern(rule, seq_q, seq_k):
    return torch.tensor([[rule(i, j) for j in range(seq_k)] for i in range(seq_q)])


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize(("seq_q", "seq_k"), [(37, 50), (32, 32), (1, 65)])
def test_predicate(block_size, seq_q, seq_k):
    mask = block_masks.from_predicate(lambda q, k: (q * 7 + k * 3) % 11 < 4, seq_q, seq_k, block_size=block_size)
    assert torch.equal(mask.dense(seq_q, seq_k)[0, 0], pattern(lambda i, j: (i * 7 + j * 3) % 11 < 4, seq_q, seq_k))


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_longformer(block_size):
    mask = block_masks.longformer(45, 3, [0, 20], block_size=block_size)
    wanted = pattern(lambda i, j: abs(i - j) <= 3 or i in (0, 20) or j in (0, 20), 45, 45)
    assert torch.equal(mask.dense(45, 45)[0, 0], wanted)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_documents(block_size):
    starts = torch.tensor([0, 7, 7, 30, 41], dtype=torch.int32)
    belongs = [sum(int(start) <= i for start in starts) for i in range(41)]
    mask = block_masks.documents(starts, block_size=block_size)
    assert torch.equal(mask.dense(41, 41)[0, 0], pattern(lambda i, j: belongs[i] == belongs[j], 41, 41))


def test_index_sets():
    mask = block_masks.from_index_sets([[0], [0, 2], []], 40, block_size=16)
    assert mask.mask is None
    assert mask.blocks[0, 0].tolist() == [[True, False, False], [True, False, True], [False, False, False]]


def test_whole_blocks_carry_no_token_mask():
    assert block_masks.documents(torch.tensor([0, 32, 64]), block_size=16).mask is None
    assert block_masks.documents(torch.tensor([0, 33, 64]), block_size=16).mask is not None


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: block_masks.longformer(10, -1, []), "window"),
        (lambda: block_masks.longformer(10, 1, [10]), "global_tokens"),
        (lambda: block_masks.from_index_sets([[3]], 40, block_size=16), "columns"),
        (lambda: block_masks.documents(torch.tensor([0, 5, 3])), "cu_seqlens"),
        (lambda: block_masks.from_predicate(lambda q, k: q + k, 4, 4), "visible"),
        (lambda: block_masks.from_predicate(lambda q, k: q < k, 4, 4, block_size=0), "block_size"),
    ],
)
def test_errors_name_the_argument(build, field):
    with pytest.raises(RequestError, match=field):
        build()
