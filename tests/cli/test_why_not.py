"""`why-not`: one backend's reasons, and whether the smallest change helps."""

from __future__ import annotations

import pytest

from attn_backends import Device, Request
from attn_backends.cli.relaxed import relax
from attn_backends.registry.manifest import read_manifest
from attn_backends.registry.registry import default_registry
from attn_backends.selector.decision import Change

SMALL = {
    "dtype": "bfloat16", "seq_q": 64, "seq_k": 64, "num_q_heads": 8, "num_kv_heads": 2, "head_dim_qk": 64,
    "head_dim_v": 64,
}  # fmt: skip


def test_one_feature_that_is_in_the_way(run, run_json):
    """The change is named, and what would happen after it."""
    words = ("why-not", "sdpa_flash", "--device", "h200", "--softcap", "50")
    found = run_json(*words)
    assert [(one["axis"], one["got"], one["want"]) for one in found["changes"]] == [("softcap", True, False)]
    assert found["after"]["would_fit"] is True
    assert found["after"]["request"].get("softcap") is None
    result = run(*words)
    assert result.exit_code == 1
    assert "softcap true -> false" in result.stdout


def test_many_changes_at_once(run_json):
    """Pages, formats and widths together; the backend fits after it."""
    found = run_json(
        "why-not", "sdpa_flash", "--device", "a100", "--phase", "decode", "--page-size", "16", "--kv-format", "scaled-int8",
        "--head-dim", "512",
    )  # fmt: skip
    assert len(found["changes"]) >= 4
    assert found["after"]["would_fit"] is True


def test_another_device_is_followed_to_an_architecture(run_json):
    """A GPU backend asked about on a CPU: which GPU would do."""
    found = run_json("why-not", "sdpa_flash", "--device", "cpu")
    assert [one["axis"] for one in found["changes"]] == ["device", "arch"]
    assert found["after"]["device"]["kind"] == "cuda"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("hopper", "--device", "h200", "--seq", "1024"), 0, "serves this request"),
        (("eager", "--device", "h200"), 0, "could serve this request"),
        (("flex", "--device", "h200", "--block", "flex"), 1, "blocked by the policy"),
        (("sdpa_cudnn", "--device", "b200", "--heads", "8/4"), 1, "cudnn-sm100-few-kv-heads"),
        (("nobody",), 2, ""),
    ],
    ids=["the winner", "outranked", "blocked", "quarantined", "unknown"],
)
def test_verdicts(run, words, code, text):
    """0 it fits, 1 it does not, 2 there is no such backend."""
    result = run("why-not", *words)
    assert result.exit_code == code
    assert text in " ".join(result.stdout.split())


@pytest.fixture
def stranger():
    """A third party's backend for CPUs, heads of 64 without a softcap, that nobody has certified."""
    box = {
        "device": ["cpu"], "dtype": ["bfloat16"], "kv_format": ["dense"], "layout": "any", "phase": "any",
        "attn_type": "any", "head_dim": [64], "head_dim_v": [64], "gqa_ratio": "any", "seq_len": "any",
        "causal": "any", "strides": "any", "index_width": "any",
    }  # fmt: skip
    manifest = {
        "schema": 1,
        "name": "stranger",
        "version": "1",
        "api": ">=1.0,<2",
        "kernel": "m:f",
        "capability": [box],
    }
    registry = default_registry()
    yield registry.register(read_manifest(manifest, label="stranger", origin="third_party")).name
    registry.unregister("stranger")


def test_behind_a_missing_certificate_stand_the_axes(run, run_json, stranger):
    """A backend out for one reason has all others named: a certificate alone would not make it fit."""
    words = ("why-not", stranger, "--device", "cpu", "--head-dim", "128", "--softcap", "50")
    found = run_json(*words)
    assert [one["code"] for one in found["candidate"]["reasons"]] == ["not_certified"]
    assert {one["axis"] for one in found["behind"]} == {"head_dim", "head_dim_v", "softcap"}
    shown = " ".join(run(*words).stdout.split())
    assert "without a valid certificate" in shown
    assert "and without that, all the same" in shown
    assert "softcap true false (not declared)" in shown


@pytest.mark.parametrize(
    ("words", "behind"),
    [
        (("--head-dim", "64"), None),
        (("--head-dim", "64", "--block", "stranger"), None),
        (("--head-dim", "64", "--dtype", "float16", "--block", "stranger"), ["dtype"]),
    ],
    ids=["no certificate alone", "blocked alone", "blocked, and of another dtype"],
)
def test_what_fits_but_for_a_filter_has_nothing_behind_it(run_json, stranger, words, behind):
    """Only what would be left is said."""
    found = run_json("why-not", stranger, "--device", "cpu", *words)["behind"]
    assert (found and [one["axis"] for one in found]) == behind


@pytest.mark.parametrize(
    "knob", [("BLOCK", "stranger"), ("ONLY", "eager"), ("PIN", "eager")], ids=["blocked", "not in only", "pinned"]
)
def test_behind_a_knob_stand_the_axes_too(run_json, stranger, monkeypatch, knob):
    """The environment's knobs are lifted with the policy that they are laid over."""
    monkeypatch.setenv(f"ATTN_BACKENDS_{knob[0]}", knob[1])
    found = run_json("why-not", stranger, "--device", "cpu", "--head-dim", "64", "--dtype", "float16")["behind"]
    assert [one["axis"] for one in found] == ["dtype"]


def test_a_name_that_nobody_has_is_answered_with_the_nearest(run):
    """Whether it took part is not the point."""
    assert "no backend 'egaer'; did you mean eager?" in run("why-not", "egaer").stderr


def test_who_was_asked_for_by_name_is_said_in_words(run):
    """No name of a rank level."""
    shown = " ".join(run("why-not", "sdpa_flash", "--device", "h200", "--backend", "eager").stdout.split())
    assert "fits, but eager was asked for by backend=" in shown


@pytest.mark.parametrize(
    ("fields", "change"),
    [
        ({"head_dim_qk": 320}, Change("head_dim", 320, 256)),
        ({"num_q_heads": 8, "num_kv_heads": 1}, Change("gqa_ratio", 8, 4)),
        ({"window_left": 3, "window_right": 3}, Change("window", "two_sided", "left")),
        ({"window_left": 3}, Change("window", "left", "none")),
        ({"softmax_scale": 0.5}, Change("scale", "custom", "default")),
        ({"softcap": 30.0}, Change("softcap", True, False)),
        ({"dropout_p": 0.1}, Change("dropout", True, False)),
        ({"page_size": 16}, Change("kv_layout", "NHD", None)),
        ({"page_size": 16}, Change("page_size", 16, 64)),
        ({"return_lse": True}, Change("lse", True, False)),
        ({"mask": "bool"}, Change("mask", "bool", "none")),
        ({"q_strides": (8, 4, 2, 3)}, Change("strides", "any", "last_dim_1")),
        ({"k_format": "scaled-int8"}, Change("k_format", "scaled-int8", "dense")),
        ({"causal": True, "seq_q": 3}, Change("causal_alignment", "bottom_right", "top_left")),
        ({}, Change("arch", (9, 0), (8, 0))),
        ({}, Change("device", "cuda", "cpu")),
        ({}, Change("seq_q", 64, 128)),
        ({}, Change("graph", "never", "always")),
    ],
    ids=lambda value: value.axis if isinstance(value, Change) else "",
)
def test_a_change_of_an_axis_is_a_change_of_fields(fields, change):
    """Whatever `nearest` can name has fields that give it, alone or with what it brings along."""
    request = Request(**{**SMALL, **fields})
    others = [Change("page_size", 16, None)] if change.axis == "kv_layout" else []
    relaxed = relax(request, Device.pretend("h200"), [change, *others])
    assert relaxed.impossible == ()


def test_what_no_field_gives_is_said():
    """An axis on which nothing is declared cannot be asked for differently."""
    relaxed = relax(
        Request(**SMALL), Device.pretend("h200"), [Change("arch", (9, 0), None), Change("dtype", "bfloat16", None)]
    )
    assert [change.axis for change in relaxed.impossible] == ["arch", "dtype"]
