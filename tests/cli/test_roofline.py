"""`attn-backends roofline`: what it says besides its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from attn_backends import Device
from attn_backends.bench.model_error import BackendError, ModelError
from attn_backends.bench.shares import Told
from attn_backends.cli.roofline_view import error_view
from tests.bench.files import results

RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "h200"
NOTE = "chosen for a range of sizes"


def test_a_file_behind_that_of_against_is_refused(run):
    """It would be judged by the first file alone."""
    files = [str(RECORDED / f"{name}.json") for name in ("prefill", "decode")]
    result = run("roofline", "--against", *files)
    assert result.exit_code == 2
    assert files[1] in result.stderr
    assert "--against A --against B" in result.stderr


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--device", "h100"), "--device"), (("--seq", "512", "--causal"), "--seq, --causal"),
        (("--config", "llama-3.1-8b"), "--config"), (("--block", "fa3"), "--block"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_question_beside_a_file_is_refused(run, flags, named):
    """The file's figures are of its own device and shapes, and would be taken for what was asked."""
    result = run("roofline", "--against", str(RECORDED / "prefill.json"), *flags)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {named}: says nothing beside --against")
    assert "hint: " in result.stderr


def test_files_of_two_devices_are_not_judged_together(run, monkeypatch, tmp_path):
    """One share would stand for both."""
    monkeypatch.chdir(tmp_path)
    told = {"d128 s4096 causal": {"sdpa_cudnn": 0.53}}
    results("prefill", told).write(tmp_path / "new.json")
    results("prefill", told, device=Device.pretend("a100").to_json()).write(tmp_path / "old.json")
    result = run("roofline", "--against", "new.json", "--against", "old.json")
    assert result.exit_code == 2
    assert "new.json is of H200 (cuda, sm_90), old.json is of A100 (cuda, sm_80)" in result.stderr


def test_shares_that_a_file_does_not_tell_are_not_printed_as_fitting(run, run_json):
    """Forward calls know nothing of the backward pass."""
    file = str(RECORDED / "prefill.json")
    said = run("roofline", "--against", file).stdout
    assert "measured on  H200" in said
    assert "backward = " not in said
    assert "no cell here depends on: " in said
    for one in run_json("roofline", "--against", file)["backends"]:
        told = {*one["fitted"], *one["at_least"], *one["beyond"], *one["untold"], *one["mingled"]}
        assert set(one["efficiency"]) <= told
        assert "backward" not in one["fitted"]


def test_each_way_not_to_tell_a_share_has_its_words():
    """A line each, below what fits."""
    told = Told(
        fits={"matrix": 0.7}, least={"memory": 0.4}, beyond=("exp",), untold=("backward",), mingled=("quantized",)
    )
    one = BackendError(backend="a", cells=3, bias=1.0, typical=1.0, worst=1.0, worst_cell="c", efficiency={}, told=told)
    error = ModelError(backends=(one,), picks=0, right=0, regret=1.0, unknown=())
    lines = [str(part) for part in error_view(error, 120)]
    assert lines[lines.index("  a") + 1 :] == [
        "    { matrix = 0.7 }",
        "    at least: memory 0.4",
        "    no share fits, it would be above 100 %: exp",
        "    too few cells to tell apart: quantized",
        "    no cell here depends on: backward",
    ]


def test_a_file_without_a_time_to_judge_says_so(run, monkeypatch, tmp_path):
    """No empty table; and what is faster than the device allows is named."""
    monkeypatch.chdir(tmp_path)
    results("prefill", {"d128 s4096 causal": {"sdpa_cudnn": 0.001}}).write(tmp_path / "fast.json")
    said = run("roofline", "--against", "fast.json").stdout
    assert "nothing to judge" in said
    assert "faster than the device's stated peaks allow: sdpa_cudnn on prefill: d128 s4096 causal" in said


@pytest.mark.parametrize("length", range(257, 1025, 64))
def test_it_says_where_the_choice_is_not_the_fastest_at_these_sizes(run, length):
    """A decision holds for a range of lengths, a prediction for one."""
    flags = ("--device", "h200", "--heads", "64/8", "--head-dim", "64", "--batch", "6", "--seq", str(length))
    shown = run("roofline", *flags).stdout
    rows = [line.split() for line in shown.splitlines() if "%" in line]
    times = {row[0]: float(row[1]) for row in rows if row[1].replace(".", "", 1).isdigit()}
    chosen = next(row[0] for row in rows if row[-1] == "chosen")
    assert (NOTE in shown) == (min(times.values()) < times[chosen])
