"""Numbers through a format and back: as near as the format allows, whatever their size, and never out of its range."""

from __future__ import annotations

import pytest
import torch

from attn_backends.error_budget.formats import BLOCK, through, weights_through
from attn_backends.errors import RequestError

GRANULARITIES = ("per_tensor", "per_head", "per_channel", "per_token_head", "block")
HALF_STEP = {"e4m3": 2**-4, "e5m2": 2**-3}  # of a normal number, relative


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("name", ["e4m3", "e5m2", "int8"])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_rounding_is_the_formats_own(name: str, granularity: str, size: float) -> None:
    """The largest of a scale is exact; the others are off by half a step of the format at most."""
    values = torch.randn(3, 2 * BLOCK + 5, 16, dtype=torch.float64) * size
    off = (through(values, name, granularity) - values).abs()
    largest = values.abs().max()
    assert off[values.abs() == largest].max() <= largest * 1e-6
    step = largest / 127 / 2 if name == "int8" else (values.abs() * HALF_STEP[name]).clamp(min=largest * 2**-15)
    assert bool((off <= step * 1.001).all())


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "int8"])
def test_zeros_stay_zeros(name: str) -> None:
    """A block of zeros has scale 1, not 0 / 0."""
    values = torch.zeros(2, 3 * BLOCK, 8, dtype=torch.float64)
    values[:, BLOCK : 2 * BLOCK] = 1.0
    assert torch.equal(through(values, name, "block"), values)


def test_a_finer_granularity_keeps_what_a_coarser_one_loses() -> None:
    """Small numbers beside a large one: gone under one scale, kept under their own."""
    values = torch.full((2, BLOCK, 8), 1e-3, dtype=torch.float64)
    values[0] *= 1e6
    assert through(values, "int8", "per_tensor")[1].abs().max() == 0
    assert torch.allclose(through(values, "int8", "per_head")[1], values[1])


def test_a_number_and_its_negative_are_rounded_alike() -> None:
    """int8 has one number more below zero than above."""
    values = torch.randn(1, 64, 8, dtype=torch.float64)
    assert torch.equal(through(-values, "int8", "per_head"), -through(values, "int8", "per_head"))


def test_small_weights_survive_in_fp8() -> None:
    """2^-9 is below e4m3's normal numbers, and is a weight of some thousand keys."""
    weights = torch.tensor([1.0, 2**-9, 2**-14, 0.0], dtype=torch.float64)
    assert torch.equal(weights_through(weights, "e4m3"), weights)
    assert torch.equal(weights_through(weights, ""), weights)


def test_an_unknown_granularity_is_an_error_with_the_known_ones() -> None:
    """Not a scale of its own invention."""
    with pytest.raises(RequestError, match=r"per_row.*per_tensor"):
        through(torch.ones(1, 1, 1, dtype=torch.float64), "int8", "per_row")
