"""`attn-backends conformance ...` and `new`: what they print, what they write, and how they exit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import pytest

from attn_backends.cli.conformance_device import chosen_device
from attn_backends.cli.conformance_progress import Counts
from attn_backends.cli.run_bar import RunBar
from attn_backends.conformance.devices import DeviceError
from attn_backends.conformance.report.schema import validate
from attn_backends.conformance.selection import selection
from attn_backends.conformance.spec import clauses
from attn_backends.device import Device
from attn_backends.registry.registry import default_registry
from tests.conformance.records import PLAIN, STRONG, record, result
from tests.conformance.small_backends import registered
from tests.plugins.install import install_into

NASTY = "oracle/fwd-fp32-b2h4x2-s129x65-d40-causal-randn-s0"
RUN = ("conformance", "run", "--workers", "0")


@pytest.fixture(autouse=True, scope="module")
def backends():
    with registered("small_right", "small_misaligned", "small_raising"):
        yield


@pytest.fixture(autouse=True)
def own_certificates(tmp_path, monkeypatch):
    """No certificate of this machine is read or written."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def test_list_has_every_clause(run_json):
    """And by group, by id, by word."""
    assert [one["id"] for one in run_json("conformance", "list")["clauses"]] == list(clauses())
    assert {one["group"] for one in run_json("conformance", "list", "mask")["clauses"]} == {"MASK"}
    assert [one["id"] for one in run_json("conformance", "list", "MASK-3")["clauses"]] == ["MASK-3"]
    assert "SINK-1" in [one["id"] for one in run_json("conformance", "list", "raw", "logit")["clauses"]]


def test_list_says_when_nothing_fits(run):
    """Exit code 2."""
    assert run("conformance", "list", "quaternions").exit_code == 2


def test_a_plan_for_a_device_that_is_not_here(run_json):
    """What the same backend would do on a GPU, without one."""
    here, there = (
        run_json("conformance", "plan", "sdpa_flash", "--device", device) for device in ("cpu", "pretend:h200")
    )
    assert (here["items"], there["not_run"]) == ([], [])
    assert here["not_run"]
    assert there["items"]
    assert there["device"]["name"] == "H200"


def test_a_plan_in_words(run):
    """Counts per check, and how many clauses; nothing is run."""
    result = run("conformance", "plan", "small_right")
    assert result.exit_code == 0
    assert "oracle" in result.stdout
    assert "items run, 0 need other devices" in result.stdout
    assert NASTY in run("conformance", "plan", "small_right", "--items").stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "small_rihgt"), "did you mean small_right"),
        (("run", "small_rihgt"), "did you mean small_right"),
        (("run", "small_right", "--device", "pretend:h200"), "nothing can run there"),
        (("run", "small_right", "--device", "pretend:h2000"), "did you mean h200"),
        (("run", "small_right", "--workers", "0", "--only", "nothing"), "keeps no item"),
        (("run", "small_right", "--workers", "0", "--only", "CAUSEL-1"), "did you mean CAUSAL-1"),
        (("run", "small_right", "--workers", "0", "--only", "orcale"), "did you mean oracle"),
        (("run", "small_right", "--workers", "0", "--only", "SINK-1"), "no item of this plan is about that clause"),
        (("run", "small_right", "--level", "huge"), "is not one of"),
        (("run", "small_right", "--track", "absent.json"), "No such file"),
        (("certificates", "--remove"), "needs the names"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_a_wrong_question_exits_2(run, words, said):
    """One message, no traceback."""
    result = run("conformance", *words)
    assert result.exit_code == 2
    assert said in result.stderr.replace("\n", " ")


def test_a_run_that_passes(run):
    """The last line is the verdict; the volume is there; a partial run does not call itself conforming."""
    result = run(*RUN, "small_right", "--only", "CAUSAL-1")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[-1].startswith("small_right 0.1.0: PARTIAL RUN PASSED, spec 1.0 quick | ")
    assert any(line.startswith("declares device {cpu}; dtype {float32}") for line in lines)


def test_a_run_that_fails_says_how_to_run_it_again(run):
    """Exit code 1; the command that it prints fails again."""
    result = run(*RUN, "small_misaligned", "--only", "oracle/*129x65*")
    command = next(line for line in result.stdout.splitlines() if line.startswith("attn-backends conformance run"))
    assert result.exit_code == 1
    assert f"FAIL {NASTY}" in result.stdout
    assert re.search(r"^clause: CAUSAL-1 causal is bottom-right .*: (\d+) of \1 items failed$", result.stdout, re.M)
    again = run(*command.split()[1:], "--workers", "0")
    assert again.exit_code == 1
    assert f"FAIL {NASTY}" in again.stdout


def test_json_is_alone_on_stdout(run_json):
    """The report by its schema, and what came of the options."""
    said = run_json(*RUN, "small_raising", "--only", "oracle")
    validate(said["report"])
    assert {one["outcome"] for one in said["report"]["results"]} == {"OVERCLAIM"}
    assert (said["written"], said["changes"], said["certificate"]) == ([], None, None)


def test_out_and_track(run, tmp_path):
    """Reports are written; compared with themselves nothing changed; what got worse is an exit code."""
    first = run(*RUN, "small_right", "--only", "oracle/*129x65*", "--out", str(tmp_path / "out"))
    assert first.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "junit.xml",
        "report.html",
        "report.json",
        "report.md",
    ]
    old = tmp_path / "out" / "report.json"
    same = run(*RUN, "small_right", "--only", "oracle/*129x65*", "--track", str(old))
    assert (same.exit_code, same.stdout.splitlines()[0]) == (0, "nothing changed")
    worse = run(*RUN, "small_misaligned", "--only", "oracle/*129x65*", "--track", str(old))
    assert worse.exit_code == 1
    assert f"! outcome  {NASTY}: PASS -> FAIL" in worse.stdout
    assert not any(line.startswith("attn-backends") for line in worse.stdout.splitlines())


def test_certify_says_what_is_in_the_way(run):
    """A partial run earns nothing, however good."""
    said = run(*RUN, "small_right", "--only", "oracle/*129x65*", "--certify", "--unmeasured", "--level", "quick")
    assert said.exit_code == 1
    assert "not certified: level quick; a certificate needs full or deep" in said.stdout
    assert "not certified: a partial run (only oracle/*129x65*)" in said.stdout


def test_the_suite_is_not_measured_for_a_run_that_earns_nothing_anyway(run, monkeypatch):
    """It takes minutes; what is in the way is said without them."""
    monkeypatch.setattr("attn_backends.cli.conformance_self_test.measure", lambda: pytest.fail("measured"))
    said = run(*RUN, "small_misaligned", "--only", "oracle/*129x65*", "--certify")
    assert said.exit_code == 1
    assert "not certified: a partial run" in said.stdout
    assert "was not measured" not in said.stdout


def test_a_backend_that_does_not_load_is_said_to(tmp_path):
    """One error beside the many items that it failed: the plugin's own words."""
    install_into(tmp_path, ["crash_at_import"])
    words = [sys.executable, "-m", "attn_backends.cli.main", "conformance", "run", "crash_at_import", "--only", "ones"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert said.returncode == 1
    assert re.search(r"^error: crash_at_import does not load: .*RuntimeError", said.stdout, re.M), said.stdout


def test_certify_tests_the_suite_first(run_json, monkeypatch, tmp_path):
    """With --certify the level is full, the suite is measured, and the certificate lies in the user's folder."""
    levels = []

    def run_suite(name, level, **_more):
        from attn_backends.registry.certificates import source_digest
        from attn_backends.registry.registry import default_registry

        levels.append(level)
        manifest = default_registry().snapshot().get(name)
        return record(backend=name, level=level, digest=source_digest(manifest), self_test=None)

    monkeypatch.setattr("attn_backends.conformance.suite.run_suite", run_suite)
    monkeypatch.setattr("attn_backends.cli.conformance_self_test.measure", lambda: _Measured())
    said = run_json("conformance", "run", "small_right", "--certify")
    assert levels == ["full"]
    assert said["report"]["self_test"] == STRONG
    assert said["in_the_way"] == []
    assert said["certificate"].startswith(str(tmp_path))
    listed = run_json("conformance", "certificates", "small_right")["certificates"]
    assert [(one["backend"], one["standing"]) for one in listed] == [("small_right", "valid")]
    assert run_json("conformance", "certificates", "small_right", "--remove")["removed"]["small_right"]
    assert run_json("conformance", "certificates")["certificates"] == []


class _Measured:
    """What a self-test says of a strong suite."""

    holds = True

    def summary(self):
        return STRONG

    def to_json(self):
        return {"holds": True, **STRONG}

    def __str__(self):
        return "suite kill rate 61/61\n\nSCORE-1 mutant killed"


def test_a_named_backend_without_a_certificate(run):
    """Exit code 1, whatever else is there."""
    assert run("conformance", "certificates").exit_code == 0
    assert run("conformance", "certificates", "small_right").exit_code == 1


@pytest.mark.parametrize("holds", [True, False])
def test_self_test_exits_by_the_gate(run, run_json, monkeypatch, holds):
    """The headline last, in words or JSON."""
    made = _Measured()
    made.holds = holds
    asked = []
    monkeypatch.setattr("attn_backends.conformance.self_test.self_test", lambda **more: asked.append(more) or made)
    said = run("conformance", "self-test", "--full-matrix")
    assert said.exit_code == (not holds)
    assert said.stdout.splitlines() == ["SCORE-1 mutant killed", "suite kill rate 61/61"]
    assert asked[0]["full_matrix"] is True
    assert run_json("conformance", "self-test")["mutants"] == 61


@pytest.mark.parametrize(
    ("text", "kept"),
    [("SCORE-1", {"value", "other"}), ("SCORE", {"value", "other"}), ("MASK-3", set()), ("value", {"value"}), ("val*", {"value"}),
     ("score-1", {"value", "other"}), ("lse", {"value", "other"}), (f"other/{PLAIN.id}", {"other"}), ("valu", set()), ("*", {"value", "other"})],
)  # fmt: skip
def test_only_means_ids_patterns_checks_clauses_and_groups(text, kept):
    """One word for each."""
    from attn_backends.conformance.item import Item

    items = [Item(check, PLAIN, ("SCORE-1", "LSE-1")) for check in ("value", "other")]
    assert {item.check for item in items if selection(text)(item)} == kept


def test_devices():
    """Real ones by kind, others by name; cuda must be here."""
    manifest = default_registry().snapshot().get("small_right")
    assert chosen_device("cpu", manifest).kind == "cpu"
    assert chosen_device("pretend:h200", manifest) == chosen_device("h200", manifest)
    if Device.current().kind == "cpu":
        with pytest.raises(DeviceError, match="no CUDA device"):
            chosen_device("cuda", manifest)


@pytest.mark.parametrize(("backend", "kind"), [("small_right", "cpu"), ("sdpa_flash", "cuda"), ("eager", "cuda")])
def test_the_usual_device_is_the_gpu_where_it_is_declared(monkeypatch, backend, kind):
    """On a machine with a GPU, a backend of the CPU alone runs on the CPU without being told to."""
    gpu = Device.pretend("h200", pretended=False)
    monkeypatch.setattr(Device, "current", staticmethod(lambda: gpu))
    assert chosen_device(None, default_registry().snapshot().get(backend)).kind == kind


def test_progress_counts_outcomes():
    """Live counts per outcome, bad ones in capitals."""
    bar = RunBar("eager full")
    counts = Counts(bar)
    bar.at(0, 4)
    for outcome in ("PASS", "PASS", "REFUSED", "FAIL"):
        counts.on_result(result(outcome))
    assert bar.line() == "eager full: 4 of 4, 0 s, 2 pass 1 refused 1 FAIL"


@pytest.mark.parametrize(
    ("total", "done", "words", "line"),
    [(0, (), "", "x: 0, 0 s"), (0, (3,), "compiles a[1]", "x: 3, 0 s, compiles a[1]"), (0, (3, 169), "", "x: 3 of 169, 0 s"), (9, (3,), "", "x: 3 of 9, 0 s")],
    ids=["nothing known", "no total", "a total later", "a total"],
)  # fmt: skip
def test_a_line_says_how_far_a_run_is(total, done, words, line):
    """How many of how many, the seconds, and what is being done: words as they are, not markup."""
    bar = RunBar("x", total)
    if done:
        bar.at(*done)
    bar.doing(words)
    assert bar.line() == line


@pytest.mark.parametrize(("every", "held", "lines"), [(30.0, 0.0, False), (0.01, 0.5, True)], ids=["short", "long"])
def test_a_long_run_without_a_terminal_writes_lines_to_stderr(run, monkeypatch, every, held, lines):
    """Again and again, and nothing of it to stdout; a short run writes none."""

    def self_test(*, full_matrix, on_progress):
        on_progress(120, 169, "mask-ignored")
        time.sleep(held)
        return _Measured()

    monkeypatch.setattr("attn_backends.conformance.self_test.self_test", self_test)
    monkeypatch.setattr("attn_backends.cli.run_bar.EVERY", every)
    said = run("conformance", "self-test", "--json")
    assert json.loads(said.stdout)["holds"] is True
    assert (len(said.stderr.splitlines()) > 1) == lines
    assert re.fullmatch(r"(self-test: 120 of 169, \d s, mask-ignored\n)*", said.stderr)


def test_new_writes_a_project(run, run_json, tmp_path):
    """Names what it wrote and what to do next; twice is a mistake."""
    said = run_json("new", "my_fa", "--dir", str(tmp_path / "a"))
    assert "src/my_fa/backend.toml" in said["files"]
    assert "pip install -e" in run("new", "my_fa", "--dir", str(tmp_path / "b")).stdout
    twice = run("new", "my_fa", "--dir", str(tmp_path / "b"))
    assert twice.exit_code == 2
    assert "nothing was written" in twice.stderr


def test_completion_knows_the_words(monkeypatch):
    """Backends, levels and devices complete; nothing of torch is imported for it."""
    from click.shell_completion import ShellComplete

    from attn_backends.cli.main import PROGRAM, cli

    complete = ShellComplete(cli, {}, PROGRAM, "_X")
    words = lambda args, incomplete: [one.value for one in complete.get_completions(args, incomplete)]  # noqa: E731
    assert words(["conformance"], "se") == ["self-test"]
    assert "small_right" in words(["conformance", "run"], "small")
    assert words(["conformance", "run", "x", "--level"], "f") == ["full"]
    assert "pretend:h200" in words(["conformance", "plan", "x", "--device"], "pretend:h2")


def test_json_of_a_plan_is_plain(run):
    """It reads back."""
    assert json.loads(run("conformance", "plan", "small_right", "--json").stdout)["backend"] == "small_right"
