"""Two files side by side, and a file beside recorded figures of peers."""

from __future__ import annotations

import json

import pytest

from attn_backends.bench.compare import compare, differences_of, geometric_mean
from attn_backends.bench.peers import judge, read_figures, void_words
from attn_backends.bench.results import ResultsError
from tests.bench.files import results

CELL, OTHER = "d128 s4096 causal", "d128 s16384 causal"
FIGURES = [
    {"kind": "copy", "GBs": 4273.0, "run": 1},
    {"kind": "fwd", "peer": "sdpa_cudnn", "D": 128, "S": 4096, "causal": True, "ms": 0.50, "run": 1},
    {"kind": "fwd", "peer": "sdpa_cudnn", "D": 128, "S": 4096, "causal": True, "ms": 0.52, "run": 2},
    {"kind": "fwd", "peer": "fa3_fwd", "D": 128, "S": 4096, "causal": True, "ms": 0.44},
    {"kind": "fwd", "peer": "a_kernel_that_nobody_calls", "D": 128, "S": 4096, "causal": True, "ms": 0.01},
    {"kind": "fp8fwd", "peer": "fa3_fwd", "D": 128, "S": 4096, "causal": True, "ms": 0.3},
    {"kind": "decode", "peer": "flashinfer_fa2", "B": 64, "L": 8192, "Hq": 32, "Hkv": 8, "D": 128, "kv": "fp8", "ms": 0.6, "graph_ms": 0.4},
]  # fmt: skip


@pytest.fixture
def figures(tmp_path):
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(FIGURES))
    return read_figures(path)


@pytest.mark.parametrize(
    ("then", "now", "verdict"),
    [(1.0, 1.05, "slower"), (1.0, 0.9, "faster"), (1.0, 1.015, "same"), (1.0, 1.0, "same"), (None, 1.0, "new"), (1.0, None, "gone")],
)  # fmt: skip
def test_a_change_is_one_beyond_spread_and_two_percent(then, now, verdict):
    """Times whose quartiles lie apart by more than 2 % changed; what only one file has is new or gone."""
    gone = {"status": "error", "why": "gone"}
    old, new = (results("prefill", {CELL: {"a": gone if ms is None else ms}}) for ms in (then, now))
    (change,) = compare(old, new)
    assert change.verdict == verdict
    assert change.ratio == (None if None in (then, now) else pytest.approx(now / then, rel=1e-3))


def test_a_wide_spread_hides_a_change():
    """5 % is nothing where quartiles are 8 % wide."""
    old = results("prefill", {CELL: {"a": 1.0}})
    new = results("prefill", {CELL: {"a": 1.05}})
    for file in (old, new):
        file.cells[CELL]["results"]["a"]["device_ms"] |= {"q25": 0.97, "q75": 1.08}
    assert compare(old, new)[0].verdict == "same"


def test_only_what_was_tried_is_gone():
    """Cells that the new run left out say nothing; the mean is over what both have."""
    old = results("prefill", {CELL: {"a": 1.0, "b": 1.0}, OTHER: {"a": 4.0}})
    new = results("prefill", {CELL: {"a": 1.1}})
    changes = compare(old, new)
    assert [(one.backend, one.verdict) for one in changes] == [("a", "slower"), ("b", "gone")]
    assert geometric_mean(changes) == pytest.approx(1.1, rel=1e-3)
    assert geometric_mean([]) is None


def test_files_of_other_suites_are_no_comparison_and_other_versions_are_said():
    """Ratios between suites mean nothing; between versions they do, and the versions are named."""
    old = results("prefill", {CELL: {"a": 1.0}})
    with pytest.raises(ResultsError, match="backward"):
        compare(results("backward", {CELL: {"a": 1.0}}), old)
    newer = results("prefill", {}, versions={"torch": "2.13.0"}, device_name="NVIDIA H100")
    assert differences_of(old, newer) == [
        "device_name: NVIDIA H200 -> NVIDIA H100", "torch: 2.11.0 -> 2.13.0", "triton: 3.6.0 -> None",
    ]  # fmt: skip


def test_figures_are_read_under_the_names_used_here(figures):
    """Medians over runs, the graph's time where there is one, and only peers that a backend calls."""
    assert figures == {
        ("prefill", CELL, "sdpa_cudnn"): 0.51,
        ("prefill", CELL, "fa3"): 0.44,
        ("fp8", f"{CELL} fp8", "fa3_fp8"): 0.3,
        ("decode", "b64 c8192 h32/8 d128 fp8-kv", "flashinfer"): 0.4,
    }


@pytest.mark.parametrize(("ms", "void"), [(0.51, False), (0.56, False), (0.57, True), (0.3, False)])
def test_a_peer_ten_percent_slower_than_recorded_voids_the_run(figures, ms, void):
    """Faster is fine, and so is up to 10 % slower; our own backends may take as long as they like."""
    verdict = judge(results("prefill", {CELL: {"sdpa_cudnn": ms, "ours": 9.0}}), figures, "figures.json")
    assert (verdict["void"], verdict["compared"]) == (void, 1)
    assert (void_words(verdict) is not None) == void
    if void:
        assert "sdpa_cudnn on d128 s4096 causal took 1.12 times what is recorded" in void_words(verdict)


def test_a_peer_that_was_tried_and_not_timed_voids_the_run(figures):
    """A peer that crashes is not one that was beaten."""
    told = {CELL: {"fa3": {"status": "error", "why": "cannot load"}, "sdpa_cudnn": 0.5}}
    verdict = judge(results("prefill", told), figures, "figures.json")
    assert "fa3 on d128 s4096 causal was not timed (error)" in void_words(verdict)


@pytest.mark.parametrize("text", ["{", "{}", '[{"kind": "fwd"}]', "[1]"])
def test_a_file_of_another_form_is_refused(tmp_path, text):
    """The error names the file."""
    path = tmp_path / "odd.json"
    path.write_text(text)
    if text == "{}":
        assert read_figures(path) == {}
        return
    with pytest.raises(ResultsError, match=r"odd\.json"):
        read_figures(path)
