"""The cost model judged by results files."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from attn_backends import Request
from attn_backends.bench.model_error import model_error
from attn_backends.bench.shares import told
from attn_backends.bench.suites import read_suite
from attn_backends.selector.cost.fit import Observation
from attn_backends.selector.cost.load import subject_of
from attn_backends.selector.cost.predict import predict
from tests.bench.files import H200, results
from tests.selector.scenes import backend, registry

FAST, SLOW = {"matrix": 0.6, "exp": 0.6, "memory": 0.9}, {"matrix": 0.3, "exp": 0.6, "memory": 0.4}
MADE = registry(backend("fast", efficiency=FAST), backend("slow", efficiency=SLOW), backend("mute")).snapshot()
CELLS = {cell.id: cell for cell in read_suite("prefill").cells}
NAMES = ["d64 s1024 full", "d128 s4096 causal", "d256 s16384 causal"]


def predicted_ms(name, cell):
    """What the model says of a backend on a cell."""
    cell = CELLS[cell]
    subject = subject_of(cell.request(), H200, sequences=cell.sequences, passes=cell.passes)
    return predict(MADE.get(name), subject).seconds * 1e3


def test_exact_times_have_no_error():
    """Times that are the predictions: factor 1 everywhere, every pick right, and the declared shares fit."""
    told = {cell: {name: predicted_ms(name, cell) for name in ("fast", "slow")} for cell in NAMES}
    error = model_error([results("prefill", told)], MADE)
    assert (error.picks, error.right, error.unknown) == (3, 3, ())
    assert error.regret == pytest.approx(1.0)
    for one in error.backends:
        assert (one.bias, one.typical, one.worst) == pytest.approx((1.0, 1.0, 1.0), rel=1e-4)
        assert one.told.fits == pytest.approx({name: one.efficiency[name] for name in one.told.fits}, rel=0.02)
        assert {"matrix", "exp"} <= set(one.told.fits)


def test_bias_is_told_from_scatter():
    """Twice as slow everywhere is bias 0.5; once slower and once faster is no bias, but as far off."""
    even = {cell: {"fast": 2 * predicted_ms("fast", cell)} for cell in NAMES}
    (one,) = model_error([results("prefill", even)], MADE).backends
    assert (one.bias, one.typical) == pytest.approx((0.5, 2.0), rel=1e-3)
    mixed = {
        cell: {"fast": factor * predicted_ms("fast", cell)} for cell, factor in zip(NAMES, (2, 0.5, 1), strict=True)
    }
    (one,) = model_error([results("prefill", mixed)], MADE).backends
    assert one.bias == pytest.approx(1.0, rel=1e-3)
    assert one.typical == pytest.approx(math.exp(2 / 3 * math.log(2)), rel=1e-3)


def test_a_wrong_pick_costs_its_regret():
    """Where the slower prediction won in truth, the pick is wrong by the ratio of the two times."""
    told = {NAMES[0]: {"fast": 1.5, "slow": 1.0, "mute": 0.5}, NAMES[1]: {"fast": 1.0, "slow": 1.01}}
    error = model_error([results("prefill", told)], MADE)
    assert (error.picks, error.right) == (2, 1)
    assert error.regret == pytest.approx(math.sqrt(1.5), rel=1e-3)
    assert error.unknown == ("mute",)


def test_predictions_are_for_the_real_lengths_and_the_pass_that_was_timed():
    """Decodes that are shorter than the longest are predicted as such, a backward cell without its forward pass."""
    mixed = read_suite("mixed").cells[0]
    told = results("mixed", {mixed.id: {"fast": 1.0}})
    (whole,) = model_error([told], MADE).backends
    told.cells[mixed.id]["sequences"] = [[1, 512, 512], [63, 1, 64]]
    (short,) = model_error([told], MADE).backends
    assert short.bias < whole.bias / 3
    name = "d128 s4096 causal"
    back = model_error([results("backward", {name: {"fast": 1.0}})], MADE).backends[0].bias
    asked = Request.from_json({**CELLS[name].request().to_json(), "needs_backward": True})
    both = predict(MADE.get("fast"), subject_of(asked, H200)).seconds * 1e3
    assert both == pytest.approx(back + predicted_ms("fast", name), rel=1e-6)


def shares(times):
    """What the times of `fast` say of its shares."""
    (one,) = model_error([results("prefill", {cell: {"fast": value} for cell, value in times.items()})], MADE).backends
    return one.told


def test_a_share_that_no_cell_depends_on_is_not_called_fitting():
    """Of calls bound by products, memory's is known from below at most: any above would fit as well."""
    found = shares({cell: predicted_ms("fast", cell) for cell in NAMES})
    assert set(found.fits) == {"matrix", "exp"}
    assert "memory" in (*found.least, *found.untold)
    assert all(least < FAST[name] for name, least in found.least.items())


def test_the_least_share_is_where_a_prediction_begins_to_move():
    """From there up all predictions are the same; a little below, one is not."""
    lean = registry(backend("lean", efficiency={**SLOW, "memory": 0.12})).snapshot().get("lean")
    cells = [CELLS[name] for name in ("d128 s1024 causal gqa8", *NAMES)]
    subjects = [subject_of(cell.request(), H200, sequences=cell.sequences, passes=cell.passes) for cell in cells]
    seen = [Observation(subject, predict(lean, subject).seconds) for subject in subjects]
    least = told(lean, seen).least["memory"]
    assert 0.06 < least < 0.12

    def seconds(share):
        manifest = replace(lean, efficiency={**lean.efficiency, "memory": share})
        return [predict(manifest, subject).seconds for subject in subjects]

    assert seconds(least * 1.01) == seconds(1.0) != seconds(least / 1.02)


def test_a_share_above_the_peak_is_none():
    """Times that are far below what all of a unit's peak would take."""
    found = shares({cell: predicted_ms("fast", cell) * 0.4 for cell in (*NAMES, "d64 s4096 full")})
    assert found.beyond
    assert not any(share > 0.999 for share in found.fits.values())


def test_one_time_is_no_fit_of_two_shares():
    """Any of the one has its own of the other."""
    found = shares({NAMES[1]: 1.0})
    assert found.fits == {}
    assert set(found.mingled) == {"matrix", "exp"}


def test_a_time_below_the_devices_peaks_is_not_judged():
    """Of an exact result; 8-bit products may be done sooner than 16-bit ones could."""
    cell = "d128 s4096 causal"
    file = results("prefill", {cell: {"fast": 0.01, "slow": 1.0}, NAMES[0]: {"fast": 1.0, "slow": 2.0}})
    error = model_error([file], MADE)
    assert error.impossible == (f"fast on prefill: {cell}",)
    assert {one.backend: one.cells for one in error.backends} == {"fast": 1, "slow": 2}
    file.cells[cell]["results"]["fast"]["numerics"] = "quantized"
    assert model_error([file], MADE).impossible == ()
