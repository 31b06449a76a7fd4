"""The pytest doors: one test per item, with the item's id, and a failure that says how to run it again."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from attn_backends.conformance import engine, plan, pytest_items
from attn_backends.device import Device
from tests.conformance.small_backends import registered

pytest_plugins = ["pytester"]
SUITE = (
    "--pyargs",
    "attn_backends.conformance",
    "-p",
    "no:randomly",
    "-p",
    "no:cacheprovider",
    "-p",
    "attn_backends.conformance.plugin",
)
NO_GPU = pytest.mark.skipif(Device.of("cuda").arch is not None, reason="there is a GPU here")
LOADED = (engine, plan)  # pytest in pytest forgets what it imported, and torch can be imported once
NASTY = "oracle/fwd-fp32-b2h4x2-s129x65-d40-causal"


@pytest.fixture(autouse=True, scope="module")
def backends():
    with registered("small_right", "small_misaligned", "small_raising"):
        pytest_items.forget()
        yield


@pytest.fixture
def suite(pytester):
    """Run the suite under pytest, in this process."""
    return lambda *words: pytester.runpytest_inprocess(*SUITE, *words)


def collected(result):
    """The ids that were collected."""
    return [re.sub(r"^.*?::", "", line) for line in result.outlines if "::" in line]


def test_one_test_per_item_with_its_id(suite):
    """The ids are the plan's, and no file of the suite besides is taken for tests."""
    items = pytest_items.items_of(pytest_items.Target("small_right", "quick", "cpu"))
    assert collected(suite("--attn-backend", "small_right", "--collect-only", "-q")) == [item.id for item in items]


def test_k_chooses(suite):
    """Words of ids choose items; a right backend passes them."""
    result = suite("--attn-backend", "small_right", "-k", "refused-dtype or s1x1-")
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] >= 2
    assert outcomes["deselected"] > 50
    assert result.ret == 0


def test_a_failure_says_everything(suite):
    """Outcome, clauses with their promise, numbers, and the command that runs it again; no traceback."""
    result = suite("--attn-backend", "small_misaligned", "-k", NASTY.partition("/")[2], "-x")
    assert result.ret == 1
    text = result.stdout.str()
    assert re.search(rf"FAIL {NASTY}\S*", text)
    assert "there got" in text
    assert "CAUSAL-1: causal is bottom-right unless asked otherwise" in text
    assert re.search(rf"replay: attn-backends conformance run small_misaligned --level quick --only {NASTY}\S*", text)
    assert "Traceback" not in text
    assert result.parseoutcomes()["failed"] == 1


def test_x_stops_at_the_first(suite):
    """As with any test."""
    result = suite("--attn-backend", "small_raising", "-k", "oracle", "-x", "-q")
    assert result.parseoutcomes()["failed"] == 1
    assert "OVERCLAIM" in result.stdout.str()
    assert "no kernel image <b>is</b> available" in result.stdout.str()


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--attn-backend", "small_rihgt"], "did you mean small_right"), ([], "say which backend"),
     (["--attn-backend", "sdpa_flash"], "nothing to run on cpu: not run here"), (["--attn-backend", "small_right", "--attn-level", "huge"], "invalid choice"),
     pytest.param(["--attn-backend", "small_right", "--attn-device", "cuda"], "there is no CUDA device here", marks=NO_GPU)],
    ids=["mistyped", "unnamed", "other hardware", "no level", "no GPU"],
)  # fmt: skip
def test_what_cannot_run_is_said(suite, words, said):
    """Nothing passes by running nothing."""
    result = suite(*words)
    text = result.stdout.str() + result.stderr.str()
    assert result.ret != 0
    assert said in text
    assert "pluggy" not in text.partition("plugins:")[2]  # no traceback


CLASS = """
from attn_backends.conformance import BackendConformance

class TestSmall(BackendConformance):
    backend = {backend!r}
    level = {level!r}

    def test_something_of_their_own(self):
        assert True
"""


def test_the_class_in_somebody_elses_repository(pytester):
    """Name the backend, and every item is a test of the class, beside the tests that it has anyway."""
    pytester.makepyfile(test_ours=CLASS.format(backend="small_misaligned", level="quick"))
    result = pytester.runpytest_inprocess("-p", "no:randomly", "-k", "own or s129x65-d40-causal-randn or refused-dtype")
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] >= 2
    assert outcomes["failed"] >= 1
    assert "replay: attn-backends conformance run small_misaligned --level quick --only" in result.stdout.str()


@pytest.mark.parametrize(
    ("backend", "level", "said"),
    [("", "quick", 'TestSmall: say which backend: backend = "my_fa"'), ("small_rihgt", "quick", "did you mean small_right"),
     ("small_right", "huge", "level 'huge' is none of quick, full, deep"), ("sdpa_flash", "quick", "nothing to run on cpu")],
    ids=["unnamed", "mistyped", "no level", "other hardware"],
)  # fmt: skip
def test_what_the_class_cannot_run_is_said_in_a_sentence(pytester, backend, level, said):
    """An error of the collection, without a traceback."""
    pytester.makepyfile(test_ours=CLASS.format(backend=backend, level=level))
    result = pytester.runpytest_inprocess("-p", "no:randomly")
    assert result.ret != 0
    assert said in result.stdout.str()
    assert "in pytest_generate_tests" not in result.stdout.str()


def test_the_command_line_beats_the_class(pytester):
    """--attn-level full runs more than the class says."""
    pytester.makepyfile(test_ours=CLASS.format(backend="small_right", level="quick"))
    more = (
        "-p",
        "no:randomly",
        "-p",
        "attn_backends.conformance.plugin",
        "--collect-only",
        "-q",
        "--attn-level",
        "full",
    )
    items = pytest_items.items_of(pytest_items.Target("small_right", "full", "cpu"))
    assert len(items) > len(pytest_items.items_of(pytest_items.Target("small_right", "quick", "cpu")))
    assert (
        len(collected(pytester.runpytest_inprocess(*more))) == len(items) + 2
    )  # the declaration's test, and one of their own


def test_an_unused_plugin_costs_nothing():
    """Every pytest of the machine loads it: no torch, none of the suite."""
    code = (
        "import sys, attn_backends.conformance.plugin, attn_backends.conformance as suite\n"
        "heavy = {'torch', 'numpy', 'rich', 'jinja2', 'click', 'attn_backends.registry'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert [name for name in sys.modules if name.startswith('attn_backends.conformance.')] == ['attn_backends.conformance.plugin']\n"
        "suite.BackendConformance\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_n_spreads_the_items(pytester):
    """Two workers of xdist plan the same items and share them."""
    result = pytester.runpytest_subprocess(
        *SUITE, "-p", "tests.conformance.small_backends", "-n", "2", "--attn-backend", "small_right", "-k", "s1x1- or refused-dtype"
    )  # fmt: skip
    assert result.ret == 0
    assert result.parseoutcomes()["passed"] >= 2
