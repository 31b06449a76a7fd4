"""`attn-backends quantization-error`: a table with bars, JSON, files, and what is wrong with them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from attn_backends.cli.main import cli
from attn_backends.error_budget.options import OPTIONS

SMALL = ("--seq", "64", "--head-dim", "32", "--heads", "2")


def run(*given: object) -> Any:
    return CliRunner().invoke(cli, ["quantization-error", *map(str, given)])


def test_every_option_has_its_row_and_its_bar() -> None:
    """The longest bar is the largest error's."""
    answer = run(*SMALL, "--outliers", "0.01")
    assert answer.exit_code == 0, answer.output
    for one in OPTIONS:
        assert one.name in answer.output
    assert "█" * 14 in answer.output


def test_json_carries_what_the_table_shows() -> None:
    """And the options within a budget."""
    answer = run(*SMALL, "--json", "--budget", "0.02")
    found = json.loads(answer.stdout)
    assert found["schema"] == "attn.quantization_error/1"
    assert [one["name"] for one in found["options"]] == [one.name for one in OPTIONS]
    assert set(found["within"]) == {one["name"] for one in found["options"] if one["relative"] <= 0.02}


def test_a_budget_nobody_keeps_says_so() -> None:
    """With what to do then."""
    assert "16 bits, or allow more" in run(*SMALL, "--budget", "1e-9").output


@pytest.mark.parametrize("form", ["dict", "list"])
def test_tensors_come_from_a_file(tmp_path: Path, form: str) -> None:
    """A dict with q, k, v, or three tensors."""
    made = {name: torch.randn(1, 2, 16, 8) for name in "qkv"}
    torch.save(made if form == "dict" else list(made.values()), tmp_path / "t.pt")
    answer = run("--file", tmp_path / "t.pt", "--layout", "bhsd", "--json")
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["keys"] == 16


@pytest.mark.parametrize(
    ("content", "message"),
    [({"q": torch.ones(1)}, "the keys q, k and v"), ([torch.ones(1)], "three tensors"), (b"no archive", "torch.save")],
    ids=["no k", "one tensor", "no archive"],
)
def test_a_file_with_something_else_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    """Exit code 2, and what such a file holds."""
    path = tmp_path / "t.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    answer = run("--file", path)
    assert answer.exit_code == 2
    assert message in answer.output


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--kv-heads", 3), "divide"),
        (("--device", "nowhere"), "device: .*a device of this machine"),
        (("--device", "meta"), "device: .*a device of this machine"),
        (("--budget", "inf", "--json"), "--budget"),
        (("--budget", "nan", "--json"), "--budget"),
        (("--seed", 2**70), "--seed"),
    ],
    ids=lambda one: " ".join(map(str, one)) if isinstance(one, tuple) else "",
)
def test_a_wrong_option_is_a_sentence_and_exit_code_2(given: tuple[object, ...], message: str) -> None:
    """No traceback, and nothing but numbers in JSON."""
    answer = run(*SMALL, *given)
    assert answer.exit_code == 2
    assert re.search(message, answer.output)
