"""`attn-backends calibrate` as people type it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from attn_backends import Device, Request, select
from attn_backends.calibrate.points import of_requests
from attn_backends.cli.calibrate_list import print_listed
from attn_backends.cli.main import cli
from attn_backends.selector.measured.bucket import bucket_of
from attn_backends.selector.measured.standing import stored_times


def run(*words):
    return CliRunner().invoke(cli, ["calibrate", "--device", "cpu", *map(str, words)])


def test_shapes_are_listed():
    """The built-in ones, a model's, and what of a model cannot be drawn."""
    assert "20 shapes" in run("--list").output
    model = json.loads(run("--list", "--json", "--config", "llama-3.1-8b", "--context", "1024").stdout)
    assert model["left_out"] == {}
    requests = [Request.from_json(shape["request"]) for shape in model["shapes"]]
    assert {"prefill", "decode", "append"} == {request.phase for request in requests}
    for shape, request in zip(model["shapes"], requests, strict=True):
        assert bucket_of(request) == (shape["bucket"]["kind"], tuple(shape["bucket"]["place"]))
        top = (request.batch, request.seq_q, request.seq_k)
        assert all(size <= most for one in shape["sizes"] for size, most in zip(one[0], top, strict=True))
    assert json.loads(run("--list", "--json", "--config", "gpt-oss-20b").stdout)["shapes"] == []
    assert "left out: 48 requests with sinks=True" in run("--list", "--config", "gpt-oss-20b").stdout


LLAMA = """\
phase      batch     new    keys   heads   width   what else
─────────────────────────────────────────────────────────────────
prefill        1     256     256    32/8     128   causal
prefill        1   1,024   1,024    32/8     128   causal
prefill        4     256     256    32/8     128   causal
prefill        4   1,024   1,024    32/8     128   causal
decode         1       1     256    32/8     128   causal page 16
decode         1       1   1,024    32/8     128   causal page 16
decode        16       1     256    32/8     128   causal page 16
decode        16       1   1,024    32/8     128   causal page 16
decode       128       1     256    32/8     128   causal page 16
decode       128       1   1,024    32/8     128   causal page 16
append         4     128     256    32/8     128   causal page 16
append         4     512   1,024    32/8     128   causal page 16
backward       4     256     256    32/8     128   causal
backward       4   1,024   1,024    32/8     128   causal

14 shapes of bf16, for which a backend is timed at {sizes} sizes
"""


def test_the_list_is_a_table_of_sizes(monkeypatch):
    """Sizes as they are typed, kinds together, small ones first; no exponents and no field names."""
    monkeypatch.setenv("COLUMNS", "80")
    words = ("--list", "--config", "llama-3.1-8b", "--context", "1024")
    sizes = sum(len(shape["sizes"]) for shape in json.loads(run(*words, "--json").stdout)["shapes"])
    assert run(*words).stdout == LLAMA.format(sizes=sizes)


SCALED = {"format": "scaled-fp8-e4m3", "granularity": "per_head"}


def test_shapes_of_several_dtypes_and_formats_are_told_apart(monkeypatch, capsys):
    """As those of a log may be: a column of dtypes, and how a cache is stored."""
    monkeypatch.setenv("COLUMNS", "100")
    plain = Request(
        dtype="float16", seq_q=64, seq_k=64, num_q_heads=4, num_kv_heads=4, head_dim_qk=64, head_dim_v=64, causal=True
    )
    scaled = {f"{tensor}_{what}": value for tensor in "kv" for what, value in SCALED.items()}
    stored = plain.replace(dtype="bfloat16", phase="decode", seq_q=1, window_left=31, **scaled)
    print_listed(of_requests([plain, stored]))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[2][-2:] == ["fp16", "causal"]
    assert rows[3][6:] == ["bf16", "sliding", "32", "kv", "scaled-fp8-e4m3", "per_head"]


@pytest.mark.parametrize("config", ["gemma-2-9b-it", "mistral-7b-v0.1", "whisper-large-v3"])
def test_the_list_has_a_line_a_shape_on_a_narrow_screen(monkeypatch, config):
    """80 columns are enough."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("--list", "--config", config).stdout.splitlines()
    rows = lines[2 : lines.index("")]
    assert max(map(len, lines)) <= 80
    assert f"{len(rows)} shapes" in lines[lines.index("") + 1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--config", "lama-3.1-8b"], "llama-3.1-8b"),
        (["--backends", "sdpa_flush"], "sdpa_flash"),
        (["--log", "/nowhere"], "/nowhere"),
        (["--minutes", "0"], "x>0"),
        (["--minutes", "nan"], "not a finite number"),
    ],
    ids=["config", "backend", "log", "minutes", "no number of minutes"],
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
