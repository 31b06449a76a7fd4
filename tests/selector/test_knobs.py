"""The environment variables ATTN_BACKENDS_*: what each does, seen at once, and what a misspelt one gets."""

from __future__ import annotations

import json

import pytest

from attn_backends import PolicyError, ReferenceForbiddenError, UnfitBackendError, UnknownBackendError
from attn_backends.registry.knobs import unknown_knobs
from tests.selector.scenes import backend, codes, decide, registry, run_python

MADE = registry(backend("a", priority=1), backend("b", priority=2), backend("ref", tier="reference"))


@pytest.mark.parametrize(
    ("knob", "value", "winner", "out"),
    [
        ("BLOCK", "b", "a", {"b": {"blocked"}}),
        ("BLOCK", " b , a", "ref", {"a": {"blocked"}, "b": {"blocked"}}),
        ("ONLY", "a,ref", "a", {"b": {"not_in_only"}}),
        ("PIN", "a", "a", {"b": set()}),
        ("BLOCK", "", "b", {"b": set()}),
        ("STRICT", "0", "b", {"ref": set()}),
        ("STRICT", "1", "b", {"ref": {"blocked"}}),
    ],
)
def test_a_knob_is_a_policy(monkeypatch, knob, value, winner, out):
    """Each knob acts like the policy field of its name, and stops with its variable."""
    monkeypatch.setenv(f"ATTN_BACKENDS_{knob}", value)
    decision = decide(MADE)
    assert decision.backend == winner
    assert {name: codes(decision, name) for name in out} == out
    monkeypatch.delenv(f"ATTN_BACKENDS_{knob}")
    assert decide(MADE).backend == "b"


def test_strict_makes_falling_to_the_reference_an_error(monkeypatch):
    """ATTN_BACKENDS_STRICT=1 is forbid_reference for everybody."""
    monkeypatch.setenv("ATTN_BACKENDS_STRICT", "1")
    with pytest.raises(ReferenceForbiddenError):
        decide(MADE, {"block": ["a", "b"]})


def test_a_pinned_backend_that_does_not_fit_raises(monkeypatch):
    """A pin is explicit: nobody else steps in."""
    monkeypatch.setenv("ATTN_BACKENDS_PIN", "a")
    with pytest.raises(UnfitBackendError, match="'a', chosen by backend= or a pin"):
        decide(MADE, {"block": ["a"]})
    monkeypatch.setenv("ATTN_BACKENDS_PIN", "aa")
    with pytest.raises(UnknownBackendError, match="aa"):
        decide(MADE)


def test_the_call_beats_the_pin(monkeypatch):
    """backend= of the call is nearer than the environment."""
    monkeypatch.setenv("ATTN_BACKENDS_PIN", "a")
    assert decide(MADE, backend="b").backend == "b"


@pytest.mark.parametrize(
    ("knob", "value"),
    [("STRICT", "maybe"), ("LOG_BYTES", "many"), ("LOG_FILES", "0"), ("LOG_BYTES", "0"), ("LOG_BYTES", "²")],
)
def test_a_knob_with_no_meaning_is_a_policy_error(monkeypatch, knob, value):
    """The error names the variable and what is allowed."""
    monkeypatch.setenv(f"ATTN_BACKENDS_{knob}", value)
    with pytest.raises(PolicyError, match=f"ATTN_BACKENDS_{knob}.*{value}.*allowed"):
        decide(registry())


def test_a_misspelt_knob_is_named_with_the_nearest():
    """Variables that only look like knobs are listed; others are none of our business."""
    found = unknown_knobs({"ATTN_BACKENDS_BLOK": "x", "ATTN_BACKENDS_PIN": "a", "HOME": "/"})
    assert len(found) == 1
    assert "ATTN_BACKENDS_BLOK" in found[0]
    assert "ATTN_BACKENDS_BLOCK" in found[0]


ASK = """
from attn_backends import Request, select
request = Request(dtype="float16", seq_q=4, seq_k=4, num_q_heads=1, num_kv_heads=1, head_dim_qk=64, head_dim_v=64)
for _ in range(3): print(select(request, device="h200").backend)
"""


def test_a_misspelt_knob_warns_once():
    """A fresh process warns once, with the nearest name, and decides."""
    done = run_python(ASK, ATTN_BACKENDS_ONYL="eager")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ATTN_BACKENDS_ONYL is not a knob; did you mean ATTN_BACKENDS_ONLY") == 1


def test_a_misspelt_knob_is_an_error_under_strict():
    """With STRICT=1 it is a PolicyError."""
    done = run_python(ASK, ATTN_BACKENDS_ONYL="eager", ATTN_BACKENDS_STRICT="1")
    assert done.returncode != 0
    assert "PolicyError" in done.stderr


def test_log_writes_each_new_decision_once(tmp_path):
    """ATTN_BACKENDS_LOG=folder: three times the same question is one JSON line."""
    done = run_python(ASK, ATTN_BACKENDS_LOG=str(tmp_path))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for file in tmp_path.rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(lines) == 1
    assert lines[0]["schema"] == "attn.decision/1"
