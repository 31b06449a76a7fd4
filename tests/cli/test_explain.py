"""`explain`: flags to a request, and the decision on the screen or as its record."""

from __future__ import annotations

import json

import jsonschema
import pytest

from attn_backends import Device, Request, select
from attn_backends.cli.request_flags import FieldValue, field_options
from attn_backends.request_fields import FIELDS
from attn_backends.selector.decision import Decision
from attn_backends.selector.log.schema import decision_schema

USUAL = {
    "dtype": "bfloat16", "seq_q": 4096, "seq_k": 4096, "num_q_heads": 32, "num_kv_heads": 8, "head_dim_qk": 128,
    "head_dim_v": 128, "alignment": 16,
}  # fmt: skip
QUANTISED_ALIKE = {f"{name}_format": "scaled-int8" for name in "qkv"} | {
    f"{name}_granularity": "per_tensor" for name in "qkv"
}


def test_every_field_of_the_table_has_a_flag():
    """A new row is a new flag; only what newer versions ask for has none."""
    flags = {option.name.removeprefix("field_") for option in field_options()}
    assert flags == {field.name for field in FIELDS} - {"unknown"}


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ([], {}),
        (["--causal", "--softcap", "50"], {"causal": True, "softcap": 50.0}),
        (["--heads", "16/2", "--head-dim", "192/128"], {"num_q_heads": 16, "num_kv_heads": 2, "head_dim_qk": 192}),
        (["--heads", "12"], {"num_q_heads": 12, "num_kv_heads": 12}),
        (["--seq", "1x4096", "--phase", "decode"], {"seq_q": 1, "phase": "decode"}),
        (["--phase", "decode"], {"seq_q": 1, "phase": "decode"}),
        (["--seq-q", "77"], {"seq_q": 77, "seq_k": 77}),
        (["--window-left", "4095", "--no-causal"], {"window_left": 4095}),
        (["--page-size", "16"], {"page_size": 16, "kv_layout": "NHD"}),
        (["--layout", "thd"], {"layout": "thd", "varlen": True}),
        (["--block-mask-size", "64,128"], {"block_mask_size": (64, 128)}),
        (["--q-strides", "9,8,7,1"], {"q_strides": (9, 8, 7, 1), "alignment": 2}),
        (["--softcap", "none"], {"softcap": None}),
        (["--head-dim", "72"], {"head_dim_qk": 72, "head_dim_v": 72}),
        (["--head-dim", "20"], {"head_dim_qk": 20, "head_dim_v": 20, "alignment": 8}),
        (
            ["--kv-format", "scaled-int8"],
            {"k_format": "scaled-int8", "v_format": "scaled-int8", "k_granularity": "per_tensor", "v_granularity": "per_tensor"},
        ),
        (["--dtype", "int8"], {"dtype": "int8", **QUANTISED_ALIKE}),
        (["--dtype", "int8", "--kv-format", "dense"], {"dtype": "int8", "q_format": "scaled-int8", "q_granularity": "per_tensor"}),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else "",
)  # fmt: skip
def test_flags_make_the_request_that_they_say(run_json, words, fields):
    """What is not said is the usual, what is said is kept."""
    record = run_json("explain", "--device", "h200", *words)
    assert Request.from_json(record["request"]) == Request(**{**USUAL, **fields})


def test_what_was_assumed_is_said(run):
    """Nobody has to guess which numbers an answer is for."""
    shown = run("explain", "--device", "h200", "--head-dim", "64").stdout
    assumed = shown.partition("assumed")[2]
    assert "num_q_heads 32" in assumed
    assert "head_dim_qk" not in assumed


def test_the_answer_is_that_of_select(run_json):
    """The command decides nothing itself."""
    record = run_json("explain", "--device", "a100", "--causal")
    decision = select(Request(**USUAL, causal=True), device=Device.pretend("a100"))
    assert Decision.from_json(record) == decision


@pytest.mark.parametrize("device", ["h200", "cpu", "mi300x", "here"])
def test_the_record_is_valid_and_can_be_asked_again(run_json, device):
    """--json prints a record of the log's schema, which is itself a legal question."""
    record = run_json("explain", "--device", device, "--causal")
    jsonschema.Draft202012Validator(decision_schema()).validate(record)
    again = run_json("explain", "-", "--device", device, stdin=json.dumps(record))
    assert again["id"] == record["id"]


def test_a_file_is_read_and_flags_are_laid_over_it(run_json, tmp_path):
    """A request from a file, with one thing changed."""
    file = tmp_path / "request.json"
    file.write_text(json.dumps(Request(**USUAL, softcap=30.0).to_json()))
    record = run_json("explain", str(file), "--device", "h200", "--softcap", "none", "--causal")
    assert Request.from_json(record["request"]) == Request(**USUAL, causal=True)


def test_every_candidate_is_on_the_screen_with_its_codes(run):
    """Why not the others: name, status and code of each."""
    result = run("explain", "--device", "h200", "--softcap", "50", "--all-reasons")
    record = json.loads(run("explain", "--device", "h200", "--softcap", "50", "--json").stdout)
    shown = " ".join(result.stdout.split())
    for candidate in record["candidates"]:
        assert candidate["name"] in shown
        assert candidate["status"] in shown
        if candidate["status"] == "rejected":
            for reason in candidate["reasons"]:
                assert reason["code"] in shown
                assert reason["want"] in shown


@pytest.mark.parametrize("width", ["60", "80", "120"])
def test_no_line_is_wider_than_the_screen(run, monkeypatch, width):
    """Also with every reason shown."""
    monkeypatch.setenv("COLUMNS", width)
    shown = run("explain", "--device", "h200", "--phase", "decode", "--page-size", "16", "--all-reasons").stdout
    assert max(map(len, shown.splitlines())) <= int(width)


def test_a_pipe_gets_no_colours(run):
    """Escape codes are for terminals."""
    assert "\x1b" not in run("explain", "--device", "h200").stdout


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--device", "h200"], 0),
        (["--device", "h200", "--backend", "sdpa_cpu_flash"], 1),
        (["--device", "h200", "--only", "sdpa_cpu_flash"], 1),
        (["--device", "h2000"], 2),
        (["--backend", "nobody"], 2),
        (["--only", "nobody"], 2),
        (["--softcap", "0"], 2),
        (["--seq", "many"], 2),
        (["--heads", "7/2"], 2),
        (["--dtype", "bf16"], 2),
        (["--no-such-flag"], 2),
        (["no-such-file.json"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_exit_codes(run, words, code):
    """0 somebody serves it, 1 nobody does, 2 the question is wrong."""
    result = run("explain", *words)
    assert result.exit_code == code
    if code == 2:
        assert result.stdout == ""
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize("text", ["{", "[1]", '{"dtype": "bf16"}', '{"dtype": "float16"}'], ids=repr)
def test_a_request_that_is_none_is_a_clean_error(run, text):
    """Whatever stands in the file."""
    result = run("explain", "-", stdin=text)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")


def test_a_field_of_the_future_is_refused_by_everybody(run_json):
    """A newer version's request is answered, with the reason."""
    request = {**Request(**USUAL).to_json(), "teleport": True}
    record = run_json("explain", "-", "--device", "h200", stdin=json.dumps(request))
    assert record["backend"] is None
    codes = {reason["code"] for candidate in record["candidates"] for reason in candidate["reasons"]}
    assert "unknown_feature" in codes


def test_what_is_left_out_has_a_line_of_its_own(run):
    """It is about backends, not about the last one that is listed."""
    lines = run(
        "explain", "--device", "h200", "--phase", "decode", "--page-size", "16", "--softcap", "50"
    ).stdout.splitlines()
    assert lines[-1].startswith("  and ")
    assert lines[-1].endswith("more backends (--all-reasons)")


def test_policy_options_are_laid_over_the_policy_file(run_json, tmp_path):
    """File first, then the command line."""
    file = tmp_path / "policy.toml"
    file.write_text('block = ["sdpa_cudnn"]\n')
    record = run_json(
        "explain", "--device", "h200", "--policy", str(file), "--block", "sdpa_flash", "--prefer", "eager"
    )
    assert sorted(record["policy"]["block"]) == ["sdpa_cudnn", "sdpa_flash"]
    assert (record["backend"], record["source"]) == ("eager", "prefer")


def test_a_wrong_policy_file_names_the_nearest_key(run, tmp_path):
    """As the library says it."""
    file = tmp_path / "policy.toml"
    file.write_text('blok = ["eager"]\n')
    result = run("explain", "--policy", str(file))
    assert result.exit_code == 2
    assert "did you mean block" in result.stderr


def test_a_value_that_is_not_legal_names_what_is():
    """The flag's own message has the field's words."""
    for field in FIELDS:
        if field.name != "unknown" and not field.check.choices and field.check.annotation != "bool":
            with pytest.raises(Exception, match="allowed: ") as caught:
                FieldValue(field).convert("abc", None, None)
            assert field.check.allowed in str(caught.value)


FORCED = {  # words -> (the backend, what its panel says, the hint there)
    "numerics": (
        ["--backend", "fp8"], "numerics: quantized is not allowed here, only {exact}", "--numerics exact,quantized",
    ),
    "a feature": (["--backend", "sdpa_flash", "--softcap", "50"], "softcap: got true, want false", None),
    "two axes": (["--backend", "torch_varlen"], "varlen: got false, want {true}", None),
    "a policy": (["--backend", "flex", "--block", "flex"], "flex is blocked by the policy", None),
}  # fmt: skip


@pytest.mark.parametrize("name", FORCED)
def test_a_backend_that_was_asked_for_and_does_not_serve_comes_first(run, name):
    """With every reason and its hint above the table, and at the top of the table, however many others fit."""
    words, reason, hint = FORCED[name]
    result = run("explain", "--device", "h200", *words)
    asked, shown = words[1], result.stdout
    assert result.exit_code == 1
    panel, table = shown.partition("request  ")[0], shown.partition("───\n")[2]
    said = " ".join(panel.replace("│", " ").split())
    assert reason in said
    assert hint is None or hint in said.partition("hint: ")[2]
    assert table.split()[:3] == ["-", asked, "rejected"]


def test_the_text_of_a_decision_has_it_first_too():
    """`explain()` and the log tell the same story in the same order."""
    from attn_backends import explain

    told = explain(Request(**USUAL), device="h200", backend="fp8")
    assert told.partition("candidates\n")[2].split()[:4] == ["-", "fp8", "1.0.0", "rejected:"]


NUMERICS = {
    "commas": (["--numerics", "exact,quantized"], ["exact", "quantized"]),
    "repeated": (["--numerics", "exact", "--numerics", "quantized"], ["exact", "quantized"]),
    "blanks": (["--numerics", " quantized , exact,"], ["exact", "quantized"]),
    "one": (["--numerics", "quantized"], ["quantized"]),
    "none": ([], None),
}


@pytest.mark.parametrize("spelling", NUMERICS)
@pytest.mark.parametrize("command", ["explain", "roofline", "why-not fp8", "plan gpt2 --phase prefill"])
def test_numerics_are_those_of_the_policy(run, command, spelling):
    """Repeated or with commas, in every command that takes a request: fp8 fits where quantised numerics are allowed."""
    words, numerics = NUMERICS[spelling]
    record = json.loads(run(*command.split(), "--device", "h200", *words, "--json").stdout)
    if command == "explain":
        assert record["policy"].get("numerics") == numerics
    refused = {name for name, codes in codes_of(record) if "numerics" in codes}
    assert ("fp8" in refused) == ("quantized" not in (numerics or ["exact"]))


def codes_of(record):
    """(backend, codes of the reasons against it) of every candidate in a record, however deep."""
    if isinstance(record, list):
        return [found for one in record for found in codes_of(one)]
    if not isinstance(record, dict):
        return []
    own = [
        str(one["code"] if isinstance(one, dict) else one) for one in record.get("reasons") or record.get("codes") or ()
    ]
    name = record.get("name") or record.get("backend")
    return [(name, own), *(found for value in record.values() for found in codes_of(value))]


@pytest.mark.parametrize("given", ["bogus", "exact,bogus", ",", ""])
def test_unknown_numerics_are_answered_with_the_legal_ones(run, given):
    """Exit code 2, before anything is decided."""
    result = run("explain", "--device", "h200", "--numerics", given)
    assert result.exit_code == 2
    assert "allowed: exact, quantized, approximate" in result.stderr


@pytest.mark.parametrize("command", ["explain", "why-not fp8"])
def test_a_quantised_dtype_without_formats_is_told_what_is_missing(run, command):
    """Where somebody insists on dense tensors of e4m3; the first thing on the screen says what to pass."""
    dense = [word for name in "qkv" for word in (f"--{name}-format", "dense")]
    result = run(
        *command.split(), "--device", "h200", "--dtype", "float8_e4m3fn", *dense, "--numerics", "exact,quantized"
    )
    shown = " ".join(result.stdout.replace("│", " ").split())
    assert result.exit_code == 1
    assert "q, k and v have no descale: pass q_descale, k_descale, v_descale" in shown.partition("─── ")[0]
