"""The rotation keeps scores and spreads outliers."""

from __future__ import annotations

import pytest
import torch

from attn_backends.error_budget.hadamard import block_width, rotated


@pytest.mark.parametrize("width", [1, 2, 64, 80, 96, 128, 256])
def test_scores_stay(width: int) -> None:
    """(q R)(k R)^T = q k^T, for widths that are powers of two and others."""
    q, k = torch.randn(2, 7, width, dtype=torch.float64), torch.randn(2, 9, width, dtype=torch.float64)
    assert torch.allclose(rotated(q, 5) @ rotated(k, 5).mT, q @ k.mT, atol=1e-12)


def test_it_is_the_hadamard_matrix_with_random_signs() -> None:
    """Rows of the identity become rows of +-1 / sqrt(n), orthogonal to each other."""
    matrix = rotated(torch.eye(64, dtype=torch.float64))
    assert torch.allclose(matrix.abs(), torch.full_like(matrix, 1 / 8))
    assert torch.allclose(matrix @ matrix.T, torch.eye(64, dtype=torch.float64), atol=1e-14)
    assert (matrix < 0).any(dim=0).all()
    assert not torch.equal(matrix, rotated(torch.eye(64, dtype=torch.float64), seed=1))


def test_an_outlier_is_shared_by_all_channels() -> None:
    """A channel of 100 among ones: afterwards none is more than a few times the others."""
    values = torch.randn(4, 128, dtype=torch.float64)
    values[:, 17] = 100.0
    spread = rotated(values).abs()
    assert values.abs().max() / values.abs().median() > 50
    assert spread.max() / spread.median() < 4


@pytest.mark.parametrize(("width", "block"), [(128, 128), (96, 32), (80, 16), (72, 8), (33, 1)])
def test_the_largest_power_of_two_is_rotated(width: int, block: int) -> None:
    """Other widths are rotated in blocks."""
    assert block_width(width) == block
