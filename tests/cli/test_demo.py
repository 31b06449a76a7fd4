"""`demo`: the whole way once."""

from __future__ import annotations

import os
import re

import pytest

pytest.importorskip("torch")


def test_the_demo_runs_and_is_right(run_json):
    """Every call is within its bound, was launched, and is in the log."""
    found = run_json("demo")
    assert len(found["calls"]) >= 3
    logged = {record["id"] for record in found["log"]}
    for call in found["calls"]:
        assert call["right"]
        assert call["launches"] >= 3
        assert call["id"] in logged


def test_the_demo_shows_plan_run_log_and_explanation(run, monkeypatch):
    """Four parts, no line wider than the screen, nothing left behind in the environment."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("demo").stdout
    for word in ("H200", "RTX 4090", "here:", "verdict", "attn backend=", "would fit after"):
        assert word in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "ATTN_BACKENDS_LOG" not in os.environ


def test_the_commands_that_the_demo_prints_can_be_run(run, monkeypatch):
    """The question of part 4, as it stands, is the decision that was shown."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("demo").stdout
    _before, _, rest = shown.partition("4. attn-backends ")
    words = rest.partition("why this backend")[0].replace("\\\n", " ").split()
    identity = re.search(r"id ([0-9a-f]{16})", rest)
    assert identity is not None
    assert identity[1] in run(*words).stdout
    planned = shown.splitlines()[0].removeprefix("1. attn-backends ").split()
    assert run(*planned).exit_code == 0
