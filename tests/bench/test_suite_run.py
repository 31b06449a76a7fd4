"""A run of a suite: what backends do to it, what is saved, and how a second run goes on."""

from __future__ import annotations

import json
import time
from pathlib import Path

import jsonschema
import pytest

from attn_backends.bench import suite_run
from attn_backends.bench.results import SHIPPED, Results, ResultsError
from tests.bench.small import (
    FailsLater,
    crashing,
    hungry,
    not_a_number,
    registered,
    right,
    small_run,
    uncausal,
)

SCHEMA = json.loads(SHIPPED.read_text(encoding="utf-8"))


def statuses(ran, cell):
    """Outcome by backend of one cell."""
    return {name: outcome["status"] for name, outcome in ran.results.cells[cell]["results"].items()}


def test_every_outcome_is_recorded_and_the_rest_goes_on(tmp_path):
    """Right, wrong, NaN, raising, raising late, out of memory, unfit: each says so, and the right ones are timed."""
    with registered(
        good=right, wrong=uncausal, nan=not_a_number, broken=crashing, late=FailsLater(5), big=hungry
    ) as names:
        ran = small_run(tmp_path, (*names, "sdpa_flash"))
    assert statuses(ran, "d16 s64 full") == {
        "good": "ok", "wrong": "ok", "nan": "wrong", "broken": "error", "late": "error", "big": "out_of_memory",
        "sdpa_flash": "refused",
    }  # fmt: skip
    causal = ran.results.cells["d16 s64 causal"]["results"]
    assert causal["wrong"]["status"] == "wrong"
    assert "relative error" in causal["wrong"]["why"]
    assert causal["nan"]["error"]["whole"] is None
    assert causal["broken"]["why"] == "RuntimeError: invalid argument in kernels/launch.cu"
    assert "device" in causal["sdpa_flash"]["codes"]
    good = causal["good"]
    assert good["device_ms"]["count"] == 2
    assert good["tflops"] == pytest.approx(2 * 2 * 4 * 4 * 2080 * 16 / good["device_ms"]["median"] / 1e9, rel=1e-3)
    assert good["error"]["whole"] < 1e-5


@pytest.mark.parametrize("suite", ["prefill", "backward", "fp8", "decode", "mixed", "overhead"])
def test_every_suite_runs_here_and_its_file_keeps_the_schema(tmp_path, suite):
    """Small sizes on a CPU, from inputs to file: at least one backend is timed in every cell."""
    ran = small_run(tmp_path, ("sdpa_math", "eager"), suite=suite, cells=1)
    data = json.loads((tmp_path / f"{suite}.json").read_text())
    jsonschema.validate(data, SCHEMA)
    assert data["cells"]
    assert all(any(one["status"] == "ok" for one in cell["results"].values()) for cell in data["cells"])
    assert Results.read(tmp_path / f"{suite}.json").to_json() == ran.results.to_json()


def test_a_second_run_goes_on_with_what_is_missing(tmp_path):
    """Cells that are there are not run again; the command joins the others; a new backend is run on all cells."""
    with registered(good=right, other=right):
        first = small_run(tmp_path, ("good",), cells=1)
        second = small_run(tmp_path, ("good",), cells=2, command="attn-backends bench --again")
        assert second.results.cells["d16 s64 full"] == first.results.cells["d16 s64 full"]
        assert list(second.results.cells) == ["d16 s64 full", "d16 s64 causal"]
        assert len(second.results.head["commands"]) == 2
        assert second.results.cells["d16 s64 causal"]["results"]["good"]["command"] == 1
        third = small_run(tmp_path, ("good", "other"), cells=2)
        assert set(third.results.cells["d16 s64 full"]["results"]) == {"good", "other"}


def test_sources_that_changed_are_run_again(tmp_path, monkeypatch):
    """Figures of other sources are no figures of these."""
    with registered(good=right):
        before = small_run(tmp_path, ("good",), cells=1).results.cells["d16 s64 full"]["results"]["good"]
        digest = lambda manifest: "0" * 64  # noqa: E731
        monkeypatch.setattr(suite_run, "source_digest", digest)
        monkeypatch.setattr("attn_backends.bench.cell_run.source_digest", digest)
        after = small_run(tmp_path, ("good",), cells=1).results.cells["d16 s64 full"]["results"]["good"]
    assert after["sources"] != before["sources"]
    assert after["device_ms"] != before["device_ms"]


def test_other_conditions_are_refused_and_fresh_begins_anew(tmp_path, monkeypatch):
    """Another seed or another torch must not be mixed into a file; the error names what differs."""
    with registered(good=right):
        small_run(tmp_path, ("good",), cells=1)
        with pytest.raises(ResultsError, match="seed 7 -> 8"):
            small_run(tmp_path, ("good",), seed=8)
        monkeypatch.setattr(suite_run, "versions", lambda _snapshot: {"torch": "99.0"})
        with pytest.raises(ResultsError, match=r"versions torch .* -> 99\.0"):
            small_run(tmp_path, ("good",))
        ran = small_run(tmp_path, ("good",), seed=8, fresh=True, cells=1)
    assert ran.results.head["seed"] == 8
    assert list(ran.results.cells) == ["d16 s64 full"]


def test_a_budget_stops_between_cells_and_says_what_is_left(tmp_path):
    """With no time left nothing is run, and a file is written all the same."""
    with registered(good=right):
        ran = small_run(tmp_path, ("good",), cells=3, deadline=time.monotonic() - 1)
    assert ran.left == ("d16 s64 full", "d16 s64 causal", "d16 s128 full")
    assert Results.read(tmp_path / "prefill.json").cells == {}


def test_a_lost_device_ends_the_run_and_is_not_tried_again(tmp_path, monkeypatch):
    """After an illegal access nothing more runs in this process; the next run leaves that backend out on that cell."""
    with registered(good=right, killer=crashing):
        monkeypatch.setattr("attn_backends.bench.contender.device_answers", lambda: False)
        ran = small_run(tmp_path, ("killer", "good"), cells=2)
        assert ran.lost == "killer"
        assert ran.left == ("d16 s64 causal",)
        assert statuses(ran, "d16 s64 full") == {"killer": "device_lost"}
        monkeypatch.undo()
        again = small_run(tmp_path, ("killer", "good"), cells=2)
    assert statuses(again, "d16 s64 full") == {"killer": "device_lost", "good": "ok"}
    assert statuses(again, "d16 s64 causal") == {"killer": "error", "good": "ok"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "attn.decision/1"}'])
def test_a_file_that_is_no_results_file_is_refused(tmp_path, text):
    """Whatever lies at the path is not overwritten without being asked."""
    (tmp_path / "prefill.json").write_text(text)
    with pytest.raises(ResultsError, match=r"prefill\.json"):
        small_run(tmp_path, ("sdpa_math",))
    assert (tmp_path / "prefill.json").read_text() == text


def test_a_killed_run_leaves_a_whole_file(tmp_path, monkeypatch):
    """The file is replaced at once: what was there stands until the new one is whole."""
    with registered(good=right):
        small_run(tmp_path, ("good",), cells=1)
        before = (tmp_path / "prefill.json").read_text()

        def torn(self, *_args, **_more):
            raise KeyboardInterrupt

        monkeypatch.setattr(Path, "replace", torn)
        with pytest.raises(KeyboardInterrupt):
            small_run(tmp_path, ("good",), cells=2)
    assert (tmp_path / "prefill.json").read_text() == before
