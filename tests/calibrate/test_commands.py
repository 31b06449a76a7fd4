"""`attn-backends calibrate` as people type it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from attn_backends import Device, Request, select
from attn_backends.cli.main import cli
from attn_backends.selector.measured.standing import stored_times


def run(*words):
    return CliRunner().invoke(cli, ["calibrate", "--device", "cpu", *map(str, words)])


def test_shapes_are_listed():
    """The built-in ones, a model's, and what of a model cannot be drawn."""
    assert run("--list").output.splitlines()[0].startswith("prefill head_dim 64")
    model = json.loads(run("--list", "--json", "--config", "llama-3.1-8b", "--context", "1024").stdout)
    assert model["left_out"] == {}
    assert any("phase=decode" in name for name in model["shapes"])
    assert json.loads(run("--list", "--json", "--config", "gpt-oss-20b").stdout)["shapes"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--config", "lama-3.1-8b"], "llama-3.1-8b"),
        (["--backends", "sdpa_flush"], "sdpa_flash"),
        (["--log", "/nowhere"], "/nowhere"),
        (["--minutes", "0"], "x>0"),
    ],
    ids=["config", "backend", "log", "minutes"],
)
def test_wrong_questions_say_what_is_allowed(tmp_path, words, said):
    """Exit code 2, with the nearest name where there is one."""
    answer = run("--database", tmp_path / "t.sqlite", *words)
    assert answer.exit_code == 2
    assert said in answer.output


@pytest.mark.slow
def test_a_log_is_calibrated(tmp_path, monkeypatch):
    """What a program asked for is timed, and decides from then on."""
    request = Request(
        dtype="float32", seq_q=60, seq_k=60, num_q_heads=4, num_kv_heads=4, head_dim_qk=16, head_dim_v=16, causal=True
    )
    monkeypatch.setenv("ATTN_BACKENDS_LOG", str(tmp_path / "log"))
    select(request, device=Device.of("cpu"))
    select(request.replace(causal=False), device="h200")
    monkeypatch.delenv("ATTN_BACKENDS_LOG")
    answer = run("--log", tmp_path / "log", "--database", tmp_path / "t.sqlite")
    assert answer.exit_code == 0, answer.output
    assert "2 shapes timed" in answer.output
    decision = select(request, device=Device.of("cpu"), measurements=stored_times(tmp_path / "t.sqlite"))
    assert decision.source == "measured"
    assert "just now" in decision.explain() or " ago" in decision.explain()
