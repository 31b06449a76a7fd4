"""`doctor`: what it finds, and that it survives what it finds."""

from __future__ import annotations

import sys

import pytest
from packaging.specifiers import SpecifierSet

from attn_backends.cli import findings, load_check
from attn_backends.cli.install_hint import install_hint
from attn_backends.cli.load_check import load_all
from attn_backends.registry import environment
from attn_backends.registry.knobs import KNOBS, PREFIX
from attn_backends.registry.registry import default_registry


def levels(found):
    return {(one["area"], one["subject"]): one["level"] for one in found["findings"]}


def test_a_healthy_machine_is_exit_code_0(run, run_json):
    """Every area is there, nothing is broken."""
    found = run_json("doctor", "--no-load")
    assert found["healthy"] is True
    assert {"installed", "device", "backends", "known-bad cases", "decision log"} <= {
        one["area"] for one in found["findings"]
    }
    assert run("doctor", "--no-load").exit_code == 0


@pytest.mark.parametrize(
    ("knob", "value", "where", "level"),
    [
        ("ATTN_BACKENDS_STRICT", "perhaps", ("knobs", "illegal"), "bad"),
        ("ATTN_BACKENDS_PINN", "eager", ("knobs", "unknown"), "warn"),
        ("ATTN_BACKENDS_BLOCK", "eager", ("backends", "eager"), "warn"),
        ("ATTN_BACKENDS_BLOCK", "eager, egaer", ("knobs", "ATTN_BACKENDS_BLOCK"), "warn"),
        ("ATTN_BACKENDS_ONLY", "eager,egaer", ("knobs", "ATTN_BACKENDS_ONLY"), "warn"),
        ("ATTN_BACKENDS_PIN", "egaer", ("knobs", "ATTN_BACKENDS_PIN"), "bad"),
        ("ATTN_BACKENDS_PIN", "eager", ("knobs", "ATTN_BACKENDS_PIN"), "note"),
        ("ATTN_BACKENDS_LOG", "/dev/null/log", ("decision log", "log"), "bad"),
    ],
)
def test_knobs(run, run_json, monkeypatch, knob, value, where, level):
    """A finding each, with its weight; bad ones are exit code 1."""
    monkeypatch.setenv(knob, value)
    assert levels(run_json("doctor", "--no-load"))[where] == level
    assert run("doctor", "--no-load").exit_code == (1 if level == "bad" else 0)


def test_a_name_that_nobody_has_is_answered_with_the_nearest(run, monkeypatch):
    """In a knob as anywhere else."""
    monkeypatch.setenv("ATTN_BACKENDS_PIN", "egaer")
    assert "no backend 'egaer'; did you mean eager?" in run("doctor", "--no-load").stdout


def test_every_knob_is_listed_with_its_meaning(run_json, monkeypatch):
    """Set or not, also where another one is illegal."""
    for value in (None, "perhaps"):
        if value:
            monkeypatch.setenv("ATTN_BACKENDS_STRICT", value)
        found = {one["subject"]: one["text"] for one in run_json("doctor", "--no-load")["findings"]}
        for name, doc in KNOBS.items():
            assert doc in found[PREFIX + name]


def test_a_package_that_is_missing_is_said_once(run, monkeypatch):
    """Not once for every backend that needs it."""
    for module in (environment, findings):
        monkeypatch.setattr(module, "installed_version", lambda name: None if name == "torch" else "3.7")
    default_registry().refresh()
    try:
        shown = run("doctor", "--no-load").stdout
    finally:
        monkeypatch.undo()
        default_registry().refresh()
    assert shown.count("missing requirement: torch") == 1
    assert shown.count("pip install 'torch>=2.11,<2.14'") == 2  # for the package, and as no backend is ready


@pytest.mark.parametrize(
    ("package", "asked", "hint"),
    [
        ("triton", [">=3.6,<3.8", ">=3.6,<3.8"], "pip install 'triton>=3.6,<3.8'"),
        ("torch", [">=2.4", ">=2.11,<2.14", ">=2.9,<3"], "pip install 'torch>=2.11,<2.14'"),
        ("torch", ["<2", ">=2.11,<2.14", ">=2.11,<2.14"], "pip install 'torch>=2.11,<2.14'"),
        ("torch", [], "in a clone: pip install '.[torch]'"),
        ("numba-cuda", [">=0.30"], "pip install 'numba-cuda[cu13]>=0.30'"),
        ("plain", [""], "pip install 'plain'"),
        ("odd", ["!=1.2,>=1.1", "==1.*"], "pip install 'odd>=1.1,==1.*,!=1.2'"),
    ],
    ids=["all say one", "the narrowest", "most, where nothing suits all", "none says", "with its extra", "any", "other operators"],
)  # fmt: skip
def test_an_install_hint_keeps_to_what_manifests_say(package, asked, hint):
    """Whoever follows it has a version that the backends take."""
    assert install_hint(package, [SpecifierSet(text) for text in asked]) == hint


def test_looking_at_the_log_folder_makes_none(run, monkeypatch, tmp_path):
    """A doctor touches nothing."""
    monkeypatch.setenv("ATTN_BACKENDS_LOG", str(tmp_path / "a" / "b"))
    assert run("doctor", "--no-load").exit_code == 0
    assert list(tmp_path.iterdir()) == []


PROBE = """
import json, os, sys, time
for name in sys.argv[1:]:
    print(json.dumps({"begin": name}), flush=True)
    if name == "crash":
        sys.stderr.write("segfault, nearly\\n")
        os._exit(139)
    if name == "hang":
        time.sleep(60)
    print(json.dumps({"end": name, "error": "boom" if name == "broken" else None, "seconds": 0.1}), flush=True)
"""


def test_a_backend_that_crashes_or_hangs_takes_no_other_down(monkeypatch, tmp_path):
    """Each gets its own result, in order."""
    (tmp_path / "fake_probe.py").write_text(PROBE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(load_check, "PROBE", "fake_probe")
    found = load_all(["fine", "crash", "broken", "hang", "last"], patience=3.0)
    assert [one.name for one in found] == ["fine", "crash", "broken", "hang", "last"]
    errors = {one.name: one.error for one in found}
    assert errors["fine"] is errors["last"] is None
    assert errors["broken"] == "boom"
    assert "status 139: segfault, nearly" in errors["crash"]
    assert "within 3 s" in errors["hang"]


@pytest.mark.slow
def test_backends_are_really_loaded(run_json):
    """In a process of its own: torch stays out of this one unless it was here before."""
    before = "torch" in sys.modules
    found = run_json("doctor")
    texts = {one["subject"]: one["text"] for one in found["findings"] if one["area"] == "backends"}
    assert "loads (" in texts["eager"]
    assert ("torch" in sys.modules) == before
