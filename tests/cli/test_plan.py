"""`plan`: a model's layers on devices."""

from __future__ import annotations

import json

import pytest

from attn_backends import Device, Request, select
from attn_backends.planning import layer_kinds, load_config, requests, shipped


def test_the_plan_is_what_select_says_of_what_the_config_implies(run_json):
    """Two devices, every kind and phase, in order."""
    plan = run_json("plan", "gemma-2-9b-it", "--device", "h200", "--device", "rtx_4090")
    kinds = layer_kinds(load_config("gemma-2-9b-it"))
    assert [kind["name"] for kind in plan["kinds"]] == [kind.name for kind in kinds]
    for planned, kind in zip(plan["kinds"], kinds, strict=True):
        for call, implied in zip(planned["calls"], requests(kind), strict=True):
            assert Request.from_json(call["request"]) == implied.request
            for decision, name in zip(call["decisions"], ("h200", "rtx_4090"), strict=True):
                assert decision["backend"] == select(implied.request, device=Device.pretend(name)).backend


def test_options_shape_the_requests(run_json):
    """Context, batch, page size, format and dtype reach every call that has them."""
    plan = run_json(
        "plan", "llama-3.1-8b", "--device", "h200", "--phase", "decode", "--context", "1000", "--batch", "7",
        "--page-size", "64", "--kv-format", "scaled-fp8-e4m3", "--dtype", "float16",
    )  # fmt: skip
    (call,) = plan["kinds"][0]["calls"]
    request = Request.from_json(call["request"])
    assert (request.phase, request.seq_k, request.batch, request.page_size) == ("decode", 1000, 7, 64)
    assert (request.k_format, request.dtype) == ("scaled-fp8-e4m3", "float16")


@pytest.mark.parametrize("width", ["80", "120"])
def test_the_screen_shows_kinds_phases_winners_and_notes(run, monkeypatch, width):
    """Nothing wider than the screen, nothing missing."""
    monkeypatch.setenv("COLUMNS", width)
    result = run("plan", "gemma-2-9b-it", "--device", "h200")
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= int(width)
    for word in ("sliding 4096", "full", "prefill", "append", "decode", "training", "H200 sm_90", "note:"):
        assert word in result.stdout


@pytest.mark.parametrize("devices", [("h200",), ("h200", "a100"), ("h200", "a100", "mi300x")], ids=len)
@pytest.mark.parametrize("width", ["80", "120"])
def test_no_name_is_broken_however_many_devices(run, monkeypatch, width, devices):
    """Devices stand below each other where they do not fit side by side; no line ends in blanks."""
    monkeypatch.setenv("COLUMNS", width)
    shown = run("plan", "llama-3.1-8b", *(word for name in devices for word in ("--device", name))).stdout
    lines = shown.splitlines()
    assert max(map(len, lines)) <= int(width)
    assert all(line == line.rstrip() for line in lines)
    assert "paged_decode" in shown
    assert "kv_layout" in shown
    for name in ("H200 sm_90", "A100 sm_80", "MI300X gfx942")[: len(devices)]:
        assert name in shown


def test_a_note_of_every_kind_is_printed_once(run):
    """Above the kinds, not under each."""
    shown = run("plan", "gpt-oss-20b", "--device", "h200").stdout
    assert shown.count("note: sinks inferred") == 1
    assert shown.index("note: sinks inferred") < shown.index("sliding 128")


def test_why_gives_every_reason(run):
    """The short form names codes, the long one says what was asked and what is declared."""
    shown = run("plan", "gemma-2-9b-it", "--device", "h200", "--phase", "prefill", "--why").stdout
    assert "softcap: got true, want false (not declared)" in shown


def test_a_call_that_nobody_serves_is_exit_code_1(run):
    """A plan with a hole is a finding."""
    assert run("plan", "llama-3.1-8b", "--device", "h200", "--only", "sdpa_cpu_flash").exit_code == 1


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_config_can_be_drawn(run, name):
    """Encoders, latents, images, odd widths."""
    result = run("plan", name, "--device", "h200", "--why")
    assert result.exit_code in (0, 1)
    assert name in result.stdout


def test_a_missing_key_is_named(run, tmp_path):
    """A config that cannot be read says what it lacks."""
    config = json.loads(json.dumps(load_config("llama-3.1-8b")))
    del config["num_attention_heads"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = run("plan", str(tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{tmp_path / 'config.json'}: missing key num_attention_heads" in result.stderr
    assert "nearest key" not in result.stderr  # num_key_value_heads is there, and means something else
    assert "hint: add num_attention_heads to config.json\n" in result.stderr


def test_a_file_that_is_not_json_is_named_with_its_line(run, tmp_path):
    """The hint is about that file, not about the shipped ones."""
    (tmp_path / "config.json").write_text('{"a": 1,\n "b": }')
    said = run("plan", str(tmp_path)).stderr
    assert f"{tmp_path / 'config.json'}: not JSON, line 2" in said
    assert "hint: correct line 2 of config.json\n" in said


@pytest.mark.parametrize(("name", "near"), [("llama-3.1", "llama-3.1-8b"), ("zzzzz", "")], ids=["near", "far"])
def test_a_wrong_name_gets_the_nearest_and_where_all_are(run, name, near):
    """Never all of them."""
    said = run("plan", name).stderr
    assert near in said
    assert "plan --shipped" in said
    assert "whisper" not in said


@pytest.mark.parametrize(
    "words", [(), ("no-such-model",), ("gpt2", "--device", "h2000"), ("gpt2", "--batch", "0")], ids=str
)
def test_wrong_questions_are_exit_code_2(run, words):
    """No config, no such config, no such device, no such size."""
    assert run("plan", *words).exit_code == 2


@pytest.mark.parametrize(
    "words",
    [("kv-size", "gpt2", "--device", "h200", "--weights", "nan"), ("quantization-error", "--outliers", "nan")],
    ids=lambda words: words[0],
)
def test_a_size_is_a_finite_number(run, words):
    """No "nan": it is within every range of click's."""
    said = run(*words)
    assert said.exit_code == 2
    assert "not a finite number" in said.stderr


def test_shipped_lists_the_configs(run, run_json):
    """One name a line, or a list."""
    assert run("plan", "--shipped").stdout.split() == list(shipped())
    assert run_json("plan", "--shipped") == {"shipped": list(shipped())}
