"""`show`: a manifest in full."""

from __future__ import annotations

import pytest

from attn_backends.capability import TABLE
from attn_backends.registry.registry import default_registry

NAMES = default_registry().snapshot().names()


@pytest.mark.parametrize("name", NAMES)
def test_every_axis_is_either_shown_or_said_to_be_in_no_box(run, name):
    """Nothing that decides is left out."""
    shown = run("show", name).stdout
    for row in TABLE:
        if row.kind.name != "undeclarable":
            assert row.axis in shown


@pytest.mark.parametrize("name", NAMES)
def test_no_path_of_this_machine_is_shown(run, name):
    """The source is a label, not a path."""
    folder = str(default_registry().snapshot().get(name).folder)
    result = run("show", name)
    assert folder not in result.stdout
    assert f"{name}/backend.toml" in result.stdout


def test_the_json_has_boxes_requirements_and_known_bad_cases(run_json):
    """What a tool needs to know of a backend."""
    found = run_json("show", "sdpa_cudnn")
    manifest = default_registry().snapshot().get("sdpa_cudnn")
    assert found["capability"] == [box.raw for box in manifest.boxes]
    assert set(found["installed"]) == {one.name for one in manifest.requires}
    assert {"quarantine"} == {entry["code"] for entry in found["known_bad"]}


def test_tiles_are_shown_with_the_calls_they_are_for(run, run_json, monkeypatch):
    """As many as the manifest says."""
    monkeypatch.setenv("COLUMNS", "200")
    assert "192 x 128 (heads to 64, full)" in run("show", "hopper").stdout
    assert run_json("show", "hopper")["tiles"] == default_registry().snapshot().get("hopper").raw["tiles"]
    assert run_json("show", "eager")["tiles"] == []


def test_known_bad_cases_are_shown_with_their_evidence(run):
    """Whoever wonders why can follow the link."""
    shown = run("show", "sdpa_cudnn").stdout
    assert "cudnn-sm100-few-kv-heads" in shown
    assert "https://github.com/pytorch/pytorch/issues/" in shown


def test_an_unknown_name_is_answered_with_the_nearest(run):
    """A typo costs one line."""
    result = run("show", "eagre")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "did you mean eager" in result.stderr
