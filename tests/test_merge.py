"""`merge_states`: the identity of the empty state, natural logs, every layout, finite gradients."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from attn_backends.errors import RequestError
from attn_backends.merge import merge_states

INF, NAN = math.inf, math.nan
LAYOUTS = {"bshd": (2, 5, 3, 4), "bhsd": (2, 3, 5, 4), "thd": (5, 3, 4)}


def lse_shape(layout: str) -> tuple[int, ...]:
    return (3, 5) if layout == "thd" else (2, 3, 5)


def state(layout: str, seed: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    out = torch.randn(LAYOUTS[layout], generator=generator, dtype=torch.float64).to(dtype)
    lse = torch.randn(lse_shape(layout), generator=generator, dtype=torch.float64) * 3
    return out, lse if dtype == torch.float64 else lse.float()


def row(layout: str, where: tuple[int, ...]) -> tuple[int, ...]:
    """The index of out's row for an index of the LSE."""
    if layout == "thd":
        return where[1], where[0]
    b, h, s = where
    return (b, h, s) if layout == "bhsd" else (b, s, h)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_merge_is_the_weighted_mean_by_natural_exponentials(layout: str, dtype: torch.dtype) -> None:
    """Row by row, with math's own exp and log."""
    (out_a, lse_a), (out_b, lse_b) = state(layout, 1, dtype), state(layout, 2, dtype)
    out, lse = merge_states(out_a, lse_a, out_b, lse_b, layout=layout)
    assert out.dtype == dtype
    for where in itertools.product(*map(range, lse_shape(layout))):
        a, b = math.exp(lse_a[where]), math.exp(lse_b[where])
        want = (a * out_a[row(layout, where)].double() + b * out_b[row(layout, where)].double()) / (a + b)
        atol = max(torch.finfo(dtype).eps, 1e-6) if dtype != torch.float64 else 1e-12
        torch.testing.assert_close(out[row(layout, where)].double(), want, atol=atol, rtol=atol)
        assert math.isclose(lse[where], math.log(a + b), rel_tol=1e-5, abs_tol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("empty_first", [False, True])
@pytest.mark.parametrize("garbage", [NAN, INF, 3.0], ids=str)
def test_an_empty_state_is_the_identity_bit_for_bit(
    layout: str, dtype: torch.dtype, empty_first: bool, garbage: float
) -> None:
    """Whatever its out holds, negative zeros and huge LSEs included."""
    out, lse = state(layout, 1, dtype)
    out.view(-1)[0], lse.view(-1)[1] = -0.0, 1e4
    empty = torch.full_like(out, garbage), torch.full_like(lse, -INF)
    states = (*empty, out, lse) if empty_first else (out, lse, *empty)
    merged = merge_states(*states, layout=layout)
    for got, want in zip(merged, (out, lse), strict=True):
        assert torch.equal(got.contiguous().view(torch.uint8), want.view(torch.uint8))


def test_two_empty_states_are_empty() -> None:
    """Out is 0 and the LSE -inf, though both outs hold garbage."""
    garbage, lse = torch.full((1, 2, 1, 4), NAN), torch.full((1, 1, 2), -INF)
    out, merged = merge_states(garbage, lse, garbage, lse)
    assert torch.equal(out, torch.zeros_like(out))
    assert bool((merged == -INF).all())


def test_emptiness_is_per_row() -> None:
    """Rows with both, one or no state stand side by side."""
    a, b = torch.tensor([1.0, 1.0, NAN, NAN]), torch.tensor([3.0, NAN, 3.0, NAN])
    lse_a, lse_b = torch.tensor([0.0, 0.5, -INF, -INF]), torch.tensor([0.0, -INF, 0.25, -INF])
    out, lse = merge_states(a[:, None, None], lse_a[None], b[:, None, None], lse_b[None])
    assert out.flatten().tolist() == [2.0, 1.0, 3.0, 0.0]
    assert lse.flatten().tolist() == [pytest.approx(math.log(2)), 0.5, 0.25, -INF]


def test_extreme_lses_neither_overflow_nor_vanish() -> None:
    """Only differences are exponentiated."""
    out, lse = merge_states(
        torch.ones(2, 1, 1), torch.tensor([[-1e4, 1e4]]), torch.zeros(2, 1, 1), torch.tensor([[-1e4, -1e4]])
    )
    assert out.flatten().tolist() == [0.5, 1.0]
    assert lse.flatten().tolist() == [pytest.approx(-1e4 + math.log(2)), 1e4]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_equal_finite_differences(layout: str) -> None:
    """In both outs and both LSEs."""
    leaves = [t.requires_grad_() for t in (*state(layout, 1, torch.float64), *state(layout, 2, torch.float64))]
    assert torch.autograd.gradcheck(lambda *tensors: merge_states(*tensors, layout=layout), leaves)


def test_gradients_are_finite_beside_empty_states() -> None:
    """Even where out is NaN garbage; the live state gets the whole gradient."""
    out_a, out_b = torch.full((3, 1, 2), NAN), torch.ones(3, 1, 2)
    lse_a, lse_b = torch.full((1, 3), -INF), torch.tensor([[0.0, -INF, 1.0]])
    leaves = [t.requires_grad_() for t in (out_a, lse_a, out_b, lse_b)]
    out, lse = merge_states(*leaves)
    (out.sum() + lse[lse > -INF].sum()).backward()
    for leaf in leaves:
        assert leaf.grad is not None
        assert bool(leaf.grad.isfinite().all())
    assert out_b.grad is not None
    assert out_b.grad[:, 0, 0].tolist() == [1.0, 0.0, 1.0]
    assert lse_b.grad is not None
    assert lse_b.grad.flatten().tolist() == [1.0, 0.0, 1.0]


def test_the_inputs_are_not_modified_and_the_result_is_new() -> None:
    """Even the identity returns a copy."""
    out, lse = state("bshd", 1)
    before = out.clone(), lse.clone()
    merged = merge_states(out, lse, torch.full_like(out, NAN), torch.full_like(lse, -INF))
    merged[0].zero_()
    merged[1].zero_()
    assert torch.equal(out, before[0])
    assert torch.equal(lse, before[1])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"layout": "hbsd"}, ["layout", "hbsd", "bshd"]),
        ({"layout": "thd"}, ["out_a", "(2, 5, 3, 4)"]),
        ({"out_b": torch.zeros(2, 5, 3, 5)}, ["out_b", "(2, 5, 3, 4)"]),
        ({"lse_a": torch.zeros(2, 5, 3)}, ["lse_a", "(2, 3, 5)"]),
        ({"lse_b": torch.zeros(2, 3, 5, dtype=torch.float16)}, ["lse_b", "float16", "float32"]),
        ({"out_a": 1.0}, ["out_a", "float", "torch.Tensor"]),
        ({"lse_b": [0.0]}, ["lse_b", "list", "torch.Tensor"]),
        ({"out_b": torch.zeros(2, 5, 3, 4, device="meta")}, ["out_b", "meta", "cpu"]),
        ({"out_a": torch.zeros(5, 4)}, ["out_a", "(5, 4)"]),
        ({"out_a": torch.zeros(2, 5, 3, 4, dtype=torch.int32)}, ["out_a", "int32"]),
    ],
)
def test_illegal_states_are_request_errors(changes: dict[str, Any], text: list[str]) -> None:
    """The error names the tensor, what it is and what it should be."""
    arguments: dict[str, Any] = dict(zip(("out_a", "lse_a", "out_b", "lse_b"), state("bshd", 1) * 2, strict=True))
    layout = changes.pop("layout", "bshd")
    with pytest.raises(RequestError) as caught:
        merge_states(**{**arguments, **changes}, layout=layout)
    for part in text:
        assert part in str(caught.value)
