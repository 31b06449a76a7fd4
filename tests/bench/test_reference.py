"""The check before the clock: inputs are fresh and reproducible, and what is wrong on them is found."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from attn_backends import attention
from attn_backends.bench.inputs import make_inputs, stored
from attn_backends.bench.reference import backward_deviation, forward_deviation, limit_of
from attn_backends.bench.suites import read_suite

CPU = torch.device("cpu")


def cell_of(suite, index=0, **changes):
    """A small cell of a suite."""
    return dataclasses.replace(read_suite(suite, "small").cells[index], **changes)


def answer(cell, inputs):
    """The reference backend's output."""
    with torch.no_grad():
        return attention(inputs.q, inputs.k, inputs.v, **inputs.arguments, backend="eager")


@pytest.mark.parametrize(
    ("suite", "index"),
    [
        ("prefill", 1),
        ("decode", 0),
        ("decode", 1),
        ("decode", 2),
        ("decode", 3),
        ("mixed", 0),
        ("mixed", 1),
        ("fp8", 0),
    ],
)
def test_a_right_output_is_within_rounding(suite, index):
    """Dense, paged, packed, quantised in each format: the reference backend deviates by rounding alone."""
    cell = cell_of(suite, index)
    inputs = make_inputs(cell, 3, CPU)
    deviation = forward_deviation(cell, inputs, answer(cell, inputs))
    assert deviation.within(limit_of(cell, "exact"))
    assert deviation.whole < (1e-5 if cell.dtype == "float32" else 4e-3)


def test_inputs_are_drawn_from_seed_and_cell():
    """The same seed gives the same values, another seed or another cell others."""
    one, other = cell_of("prefill", 0), cell_of("prefill", 1)
    assert torch.equal(make_inputs(one, 1, CPU).q, make_inputs(one, 1, CPU).q)
    assert not torch.equal(make_inputs(one, 1, CPU).q, make_inputs(one, 2, CPU).q)
    assert not torch.equal(make_inputs(one, 1, CPU).q, make_inputs(other, 1, CPU).q)


def test_pages_lie_in_random_order_and_each_once():
    """The block table is a permutation of the pool, and not the identity."""
    table = make_inputs(cell_of("decode"), 3, CPU).arguments["block_table"].flatten()
    assert sorted(table.tolist()) == list(range(16))
    assert table.tolist() != list(range(16))


@pytest.mark.parametrize("granularity", ["per_tensor", "per_head", "per_token_head"])
@pytest.mark.parametrize(("form", "within"), [("scaled-fp8-e4m3", 0.04), ("scaled-int8", 0.02)])
def test_stored_values_times_their_scale_are_the_values(form, granularity, within):
    """No value is clamped, and rounding is that of the format."""
    tensor = torch.randn(6, 4, 3, 32)
    values, descale = stored(tensor, form, granularity)
    shapes = {"per_tensor": (1,), "per_head": (3,), "per_token_head": (6, 4, 3)}
    assert descale.shape == shapes[granularity]
    scale = {"per_tensor": descale, "per_head": descale[:, None], "per_token_head": descale[..., None]}[granularity]
    assert (values.float() * scale - tensor).norm() / tensor.norm() < within


def _shift_rows(out):
    return torch.cat([out[:, -1:], out[:, :-1]], dim=1)


def _nan(out):
    out = out.clone()
    out[-1, -1] = float("nan")
    return out


def _last_head_zero(out):
    out = out.clone()
    out[..., -1, :] = 0
    return out


def _one_bad_row(out):
    out = out.clone()
    out[0, 0] *= 1.01
    return out


@pytest.mark.parametrize("spoil", [_shift_rows, _nan, _last_head_zero, _one_bad_row, lambda out: out * 1.0005])
def test_a_spoiled_output_is_found(spoil):
    """Rows out of place, NaN, a missing head, one row that is off by a percent, everything off by half a thousandth."""
    cell = cell_of("prefill", 1)
    inputs = make_inputs(cell, 3, CPU)
    assert not forward_deviation(cell, inputs, spoil(answer(cell, inputs))).within(limit_of(cell, "exact"))


@pytest.mark.parametrize("changed", ["block_table", "k_descale", "causal"])
def test_an_output_for_other_arguments_is_found(changed):
    """Pages read in another order, another scale, a mask that is not applied."""
    cell = cell_of("mixed", 1)
    inputs = make_inputs(cell, 3, CPU)
    given = dict(inputs.arguments)
    given[changed] = {"block_table": lambda x: x.flip(1), "k_descale": lambda x: 2 * x, "causal": lambda x: not x}[
        changed
    ](given[changed])
    with torch.no_grad():
        out = attention(inputs.q, inputs.k, inputs.v, **given, backend="eager")
    assert not forward_deviation(cell, inputs, out).within(limit_of(cell, "exact"))


def test_gradients_are_checked_whole_and_in_chunks(monkeypatch):
    """dQ, dK and dV of a causal cell are right, whatever the size of the chunks; each is found when it is not."""
    cell = cell_of("backward", 1)
    inputs = make_inputs(cell, 3, CPU)
    out = attention(inputs.q, inputs.k, inputs.v, **inputs.arguments, backend="eager")
    gradients = torch.autograd.grad(out, (inputs.q, inputs.k, inputs.v), inputs.d_out)
    monkeypatch.setattr("attn_backends.bench.reference.CHUNK", 24)
    limit = limit_of(cell, "exact")
    assert backward_deviation(cell, inputs, gradients).within(limit)
    for place in range(3):
        spoiled = [gradient.clone() for gradient in gradients]
        spoiled[place][0, 5] += 0.01 * spoiled[place].abs().max()
        assert not backward_deviation(cell, inputs, tuple(spoiled)).within(limit)


def test_what_is_quantised_may_deviate_more():
    """A quantised q, or a backend that quantises, has the wider limit; quantised K and V are read exactly."""
    assert limit_of(cell_of("fp8", 0), "exact") == limit_of(cell_of("prefill"), "quantized") == 0.1
    assert limit_of(cell_of("decode", 1, dtype="bfloat16"), "exact") == 0.01
