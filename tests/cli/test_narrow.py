"""Tables on a terminal of 80 columns: one line a row, nothing cut off, nothing beyond the edge."""

from __future__ import annotations

import json
import re
from itertools import dropwhile, takewhile

import pytest

from tests.bench.test_command import results

SINGLE = "roofline --device h200 --causal --seq 8192"
DECODE = "roofline --device h200 --phase decode --page-size 16 --batch 64 --seq 1x8192"
MODEL = "roofline --device h200 --config llama-3.1-8b"
BLACKWELL = "pipeline --head-dim 128 --device blackwell --seq 4096"
TRIPLE = "pipeline --head-dim 64 --q-tiles 3 --stages 3 --causal --seq 4096 --heads 256"
FOUR = "pipeline --head-dim 128"


def rows(shown: str, head: str) -> list[str]:
    """The lines under the rule of the table whose head has this word first."""
    lines = list(dropwhile(lambda line: not line.startswith(head), shown.splitlines()))
    return list(takewhile(str.strip, list(dropwhile(lambda line: not line.startswith("──"), lines))[1:]))


LONG = "roofline --device h200 --seq 65536 --batch 64 --needs-backward"
VAST = "pipeline --head-dim 128 --seq 1000000 --heads 8192"
STORED = "roofline --device h200 --phase decode --page-size 16 --batch 64 --seq 1x8192 --kv-format scaled-fp8-e4m3"
MANY = "roofline --device v100 --config gpt-oss-20b"


@pytest.fixture
def narrow(run, monkeypatch):
    """Run a command on 80 columns, wherever its exit code lies."""
    monkeypatch.setenv("COLUMNS", "80")
    return lambda command: run(*command.split()).stdout


@pytest.mark.parametrize("command", [SINGLE, DECODE, MODEL, BLACKWELL, TRIPLE, FOUR, LONG, VAST, STORED, MANY])
def test_no_line_is_wider_than_the_screen(narrow, command):
    """Nor does a terminal have to break one."""
    assert max(map(len, narrow(command).splitlines())) <= 80


@pytest.mark.parametrize("command", [LONG, VAST])
def test_large_numbers_are_written_out(narrow, command):
    """Minutes and millions without exponents, with commas."""
    shown = narrow(command)
    assert "e+" not in shown
    assert not re.search(r"\d{5}", re.sub(r"request .*", "", shown))


@pytest.mark.parametrize(("command", "head"), [(SINGLE, "backend "), (DECODE, "backend "), (MODEL, "call ")])
def test_roofline_has_a_line_a_backend(narrow, run, command, head):
    """All with a time in one table, the others behind what keeps them."""
    shown = narrow(command)
    calls = json.loads(run(*command.split(), "--json").stdout)["calls"]
    if command == MODEL:
        expected = [call["name"] for call in calls]
    else:
        expected = [one["backend"] for one in calls[0]["backends"] if one["predicted_ms"] is not None]
    found = rows(shown, head)
    assert [line[: len(name)] for line, name in zip(found, expected, strict=True)] == expected
    assert all("%" in line for line in found)
    if command != MODEL:
        others = {one["backend"] for one in calls[0]["backends"]} - set(expected)
        assert {name.strip(",") for line in rows(shown, "why not") for name in line.split()} >= others


@pytest.mark.parametrize(("command", "schedules"), [(BLACKWELL, 4), (TRIPLE, 2), (FOUR, 4)])
def test_pipeline_has_a_line_a_schedule(narrow, command, schedules):
    """In the table of budgets with a line of what there is, and in that of overlaps."""
    shown = narrow(command)
    budgets = rows(shown, "schedule ")
    assert [line.split()[-1] in ("yes", "no") for line in budgets[:schedules]] == [True] * schedules
    assert budgets[schedules].startswith("there is")
    short = [line for line in budgets if line.endswith(" no")]
    assert len({line.partition(" does not fit")[0] for line in budgets[schedules + 1 :]}) == len(short)
    overlaps = rows(shown.partition("overlap")[2], "schedule ")
    assert len(overlaps) == schedules
    assert all(line.count("x") == 2 for line in overlaps)


def test_the_models_error_has_a_line_a_backend(narrow, monkeypatch, tmp_path):
    """Cells and shares of it stand below."""
    monkeypatch.chdir(tmp_path)
    results("prefill", {"d128 s4096 causal": {"sdpa_cudnn": 0.53, "sdpa_mem_efficient": 4.0}}).write(
        tmp_path / "prefill.json"
    )
    shown = narrow("roofline --against prefill.json")
    assert max(map(len, shown.splitlines())) <= 80
    assert sorted(line.split()[0] for line in rows(shown, "backend ")) == ["sdpa_cudnn", "sdpa_mem_efficient"]
    assert "d128 s4096 causal" in shown.partition("worst at")[2]
