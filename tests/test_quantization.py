"""Which granularity a descale's shape means, and that a shape which could mean two is not guessed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from attn_backends.errors import RequestError
from attn_backends.quantization import broadcast_scale, resolve_granularity, token_scale

DENSE: dict[str, Any] = {"field": "k_descale", "heads": 8, "head_dim": 64, "batch": 2, "seq": 100}
PACKED = {**DENSE, "total": 150}
PAGED = {**DENSE, "paged": (30, 16), "seq": None}
QUERY = {**DENSE, "field": "q_descale", "heads": (32, 8), "seq": 10}


@pytest.mark.parametrize(
    ("shape", "where", "want"),
    [
        (None, DENSE, "none"),
        ((), DENSE, "per_tensor"),
        ((1,), DENSE, "per_tensor"),
        ((1,), {**DENSE, "heads": 1}, "per_tensor"),
        ((8,), DENSE, "per_head"),
        ((2, 8), DENSE, "per_head"),
        ((8, 64), DENSE, "per_channel"),
        ((2, 100, 8), DENSE, "per_token_head"),
        ((2, 8, 7), {**DENSE, "scale_block": 16}, "block"),
        ((150, 8), PACKED, "per_token_head"),
        ((2, 8, 25), {**PACKED, "scale_block": 4}, "block"),
        ((30, 16, 8), PAGED, "per_token_head"),
        ((30, 8, 16), {**PAGED, "kv_layout": "HND"}, "per_token_head"),
        ((2, 8, 1234), {**PAGED, "scale_block": 16}, "block"),
        ((32,), QUERY, "per_head"),
        ((8,), QUERY, "per_head"),
        ((2, 32), QUERY, "per_head"),
        ((2, 8), QUERY, "per_head"),
        ((32, 64), QUERY, "per_channel"),
        ((2, 10, 32), QUERY, "per_token_head"),
    ],
)
def test_the_shape_tells_the_granularity(shape: Any, where: dict[str, Any], want: str) -> None:
    """Every shape of the contract, for dense, packed and paged tensors and for q."""
    assert resolve_granularity(shape, **where) == want
    if want != "none":
        assert resolve_granularity(shape, **where, explicit=want) == want


@pytest.mark.parametrize(
    ("shape", "where", "candidates"),
    [
        ((8, 8), {**DENSE, "batch": 8, "head_dim": 8}, ("per_head", "per_channel")),
        ((2, 8), {**PACKED, "total": 2}, ("per_head", "per_token_head")),
        ((2, 8, 8), {**DENSE, "seq": 8, "scale_block": 1}, ("per_token_head", "block")),
    ],
)
def test_an_ambiguous_shape_needs_a_name(shape: Any, where: dict[str, Any], candidates: tuple[str, ...]) -> None:
    """It is an error that lists what it could be; with a name it is that; a tie break is used only here."""
    with pytest.raises(RequestError) as caught:
        resolve_granularity(shape, **where)
    assert "k_granularity" in str(caught.value)
    for name in candidates:
        assert name in str(caught.value)
        assert resolve_granularity(shape, **where, explicit=name) == name
        assert resolve_granularity(shape, **where, tie_break=name) == name
    with pytest.raises(RequestError):
        resolve_granularity(shape, **where, tie_break="per_tensor")


@pytest.mark.parametrize(
    ("shape", "where", "more", "text"),
    [
        ((7,), DENSE, {}, ["k_descale", "(7,)", "per_head [8] or [2, 8]", "per_channel [8, 64]"]),
        ((8, 63), DENSE, {}, ["(8, 63)"]),
        ((2, 8, 7), DENSE, {}, ["(2, 8, 7)"]),
        ((2, 8, 6), {**DENSE, "scale_block": 16}, {}, ["block [2, 8, 7]"]),
        ((2, 8, 7), DENSE, {"explicit": "block"}, ["scale_block"]),
        ((8,), DENSE, {"explicit": "per_channel"}, ["per_channel [8, 64]", "k_granularity"]),
        ((8,), DENSE, {"explicit": "per_row"}, ["k_granularity", "per_row", "per_head"]),
        (None, DENSE, {"explicit": "per_head"}, ["k_descale", "per_head"]),
        ((30, 8, 16), PAGED, {}, ["per_token_head [30, 16, 8]"]),
        ((2, 8), {**DENSE, "batch": None}, {}, ["per_head [8];"]),
        ((), DENSE, {"explicit": "none"}, ["none"]),
    ],
)
def test_what_fits_nothing_is_a_request_error(shape: Any, where: Any, more: dict[str, Any], text: list[str]) -> None:
    """The error has the field, the shape and the legal shapes."""
    with pytest.raises(RequestError) as caught:
        resolve_granularity(shape, **where, **more)
    for part in text:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("descale", "granularity", "want"),
    [
        (torch.tensor(3.0), "per_tensor", (1, 1, 1)),
        (torch.tensor([3.0]), "per_tensor", (1, 1, 1)),
        (torch.arange(4.0), "per_head", (4, 1, 1)),
        (torch.arange(8.0).reshape(4, 2), "per_channel", (4, 1, 2)),
    ],
)
def test_a_static_descale_lies_over_heads_tokens_columns(descale: Any, granularity: str, want: Any) -> None:
    """Multiplying [H, S, D] by it scales head h and column d by their own factors."""
    scale = broadcast_scale(descale, granularity)
    assert scale.shape == want
    product = scale * torch.ones(4, 5, 2)
    full = descale.reshape(*descale.shape, *(1,) * (2 - descale.dim())).expand(4, 2)
    for h in range(4):
        for d in range(2):
            assert bool((product[h, :, d] == full[h, d]).all())


def test_scales_per_token_lie_over_heads_and_tokens() -> None:
    """[S, H] becomes [H, S, 1]."""
    scales = torch.arange(6.0).reshape(3, 2)
    assert token_scale(scales)[1, 2, 0] == scales[2, 1]
    with pytest.raises(ValueError, match="per_token_head"):
        broadcast_scale(scales, "per_token_head")


@pytest.mark.parametrize("module", ["attn_backends.quantization", "attn_backends.block_mask"])
def test_importing_it_imports_no_torch(module: str) -> None:
    """Listing and explaining may use it."""
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
