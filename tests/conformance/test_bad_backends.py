"""Plugins that die, hang, shout, fork or write where they should not: each has its own outcome, and the run goes on."""

from __future__ import annotations

import json
import shlex
from xml.etree import ElementTree as ET

import pytest

from attn_backends.conformance import isolation
from attn_backends.conformance.case import Case
from attn_backends.conformance.isolation import Job, rehearsed_plan, run_isolated
from attn_backends.conformance.item import Item
from attn_backends.conformance.outcome import Outcome
from attn_backends.conformance.report.schema import validate
from tests.conformance.wrong_plugins.project import BEGIN, Plugin, plugins_of
from tests.conformance.wrong_plugins.site import ROOT, Site

MISBEHAVING = plugins_of("misbehaving")
BROKEN = {  # manifests that cannot be read: what they say instead, and words of the message
    "broken_toml": ("schema = 1\n", "schema = = 1\n", "broken_toml/backend.toml: not TOML: Invalid value (at line 1"),
    "broken_axis": ("softcap = ", "sofcap = ", "sofcap: unknown axis; did you mean softcap"),
    "broken_name": ('name = "honest_fa"', 'name = "another_name"', "another_name"),
}
UNLOADABLE = {  # plugins that list well and do not load
    "no_function": ("backend.toml", "kernel:run", "kernel:walk", "has no callable 'walk'"),
    "no_module": ("backend.toml", "kernel:run", "colonel:run", "No module named"),
    "import_raises": ("kernel.py", "import torch\n", "raise RuntimeError('no driver')\n", "no driver"),
    "import_exits": ("kernel.py", "import torch\n", "raise SystemExit(1)\n", "SystemExit"),
}
CHECKS_WHILE_PLANNING = {"check_aborts": "__import__('os').abort()", "check_hangs": "__import__('time').sleep(3600)"}
PATIENCE = 15.0  # seconds per item; what a hang costs here

CALM = [Item("oracle", Case(seed=seed)) for seed in range(2)]
CALLED = Item("oracle", Case(softcap=2.0))  # a call on which those that are right at times misbehave
CHECK_OF = {"PURITY-1": "unmodified", "PURITY-2": "apart", "PURITY-3": "oracle", "DOWNCAST-1": "oracle"}
ON_SOME_CALLS = [name for name, plugin in MISBEHAVING.items() if "clause" not in plugin.expected]
ON_ALL_CALLS = [name for name, plugin in MISBEHAVING.items() if "clause" in plugin.expected]
WHOLE_RUNS = ("aborts", "hangs", "raises_megabytes")


def bent(name: str, *edit: str) -> Plugin:
    """The honest plugin with one change of one file."""
    file, old, new = edit
    return Plugin(name=name, story="", edits=((file, old, new),), expected={})


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad_backends")
    broken = [bent(name, "backend.toml", old, new) for name, (old, new, _) in BROKEN.items()]
    unloadable = [bent(name, *edit) for name, (*edit, _) in UNLOADABLE.items()]
    hanging = bent("always_hangs", "kernel.py", BEGIN, f"    __import__('time').sleep(3600)\n{BEGIN}")
    checks = [_with_check(name, statement) for name, statement in CHECKS_WHILE_PLANNING.items()]
    made = Site(folder / "site", folder / "data")
    return made.lay_out([*MISBEHAVING.values(), *broken, *unloadable, hanging, *checks])


def _with_check(name: str, statement: str) -> Plugin:
    """A plugin whose manifest names a `check`, which is asked while planning."""
    named = ("backend.toml", 'kernel = "', 'check = "honest_fa:check"\nkernel = "')
    made = ("__init__.py", 'backend."""\n', f'backend."""\n\n\ndef check(*asked):\n    {statement}\n')
    return Plugin(name=name, story="", edits=(named, made), expected={})


def run(site, name, items, timeout=PATIENCE):
    return run_isolated(name, items, path=[str(site.folder), str(ROOT)], timeout=timeout)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_SOME_CALLS)
def test_misbehaving_on_one_call_costs_that_call(site, name):
    """The call has the outcome that its table says, in words of one report line; those around it pass."""
    expected = MISBEHAVING[name].expected
    items = [CALM[0], CALLED, CALM[1]]
    results = run(site, name, items)
    assert [result.id for result in results] == [item.id for item in items]
    before, called, after = results
    assert called.outcome is Outcome(expected["outcome"]), called.message
    assert expected.get("says", "") in called.message
    assert len(called.message) < 3000
    assert "SOFTCAP-1" in called.clauses
    assert (before.outcome, after.outcome) == (Outcome.PASS, Outcome.PASS), (before.message, after.message)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_ALL_CALLS)
def test_breaking_a_clause_on_every_call_is_a_failure_of_that_clause(site, name):
    """Inputs written to, views of them handed out, another dtype or shape."""
    expected = MISBEHAVING[name].expected
    check = CHECK_OF[expected["clause"]]
    (result,) = run(site, name, [Item(check, Case())])
    assert result.outcome is Outcome(expected["outcome"]), result.message
    assert expected["clause"] in result.clauses
    assert result.message


@pytest.mark.slow
@pytest.mark.parametrize("name", UNLOADABLE)
def test_a_plugin_that_does_not_load_claims_too_much(site, name):
    """Declared and raises, with the words of what it raised."""
    (result,) = run(site, name, CALM[:1])
    assert result.outcome is Outcome.OVERCLAIM
    assert UNLOADABLE[name][-1] in result.message


@pytest.mark.slow
def test_a_backend_that_always_hangs_ends_the_run_too(site, monkeypatch):
    """After so many hangs in a row only refusals are tried, and every item has its result."""
    monkeypatch.setattr(isolation, "MOST_HANGS", 2)
    refusal = Item("refused-device", Case())
    results = run(site, "always_hangs", [*(Item("oracle", Case(seed=seed)) for seed in range(5)), refusal], timeout=3.0)
    *hung, refused = results
    assert {result.outcome for result in hung} == {Outcome.TIMEOUT}
    assert ["not tried" in result.message for result in hung] == [False, False, True, True, True]
    assert refused.outcome is Outcome.REFUSED, refused.message


@pytest.mark.slow
def test_a_check_that_takes_the_process_with_it_is_a_crash_of_the_plan(site, tmp_path):
    """It runs while planning, in the process that plans: the run ends with a report all the same."""
    report = site.suite("check_aborts", "--out", str(tmp_path), code=1)["report"]
    validate(report)
    (result,) = report["results"]
    assert (result["id"], result["outcome"]) == ("plan/check", "CRASH")
    assert "SIGABRT" in result["message"]
    assert "attn-backends conformance run check_aborts" in (tmp_path / "junit.xml").read_text()


@pytest.mark.slow
def test_a_check_that_hangs_is_a_timeout_of_the_plan(site):
    """After as long as a worker may take to start."""
    result = rehearsed_plan(Job(backend="check_hangs", path=(str(site.folder), str(ROOT))), "quick", timeout=3.0)
    assert result.outcome is Outcome.TIMEOUT
    assert "no plan" in result.message
    assert rehearsed_plan(Job(backend="raises", path=(str(site.folder), str(ROOT))), "quick") is None


@pytest.fixture(scope="module")
def planned(site):
    """The ids of the items of a partial run; all of these plugins declare the same."""
    said = json.loads(site.run("conformance", "plan", "raises", "--device", "cpu", "--json").stdout)
    return {item["id"] for item in said["items"] if "SOFTCAP-1" in item["clauses"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE_RUNS)
def test_the_report_is_whole_and_its_commands_replay(site, planned, tmp_path, name):
    """All four reports, every planned item in them; the command of a bad one has the same outcome again."""
    outcome = MISBEHAVING[name].expected["outcome"]
    words = ("--only", "SOFTCAP-1", "--timeout", f"{PATIENCE:g}", "--out", str(tmp_path))
    report = site.suite(name, *words, code=1)["report"]
    validate(report)
    assert {one["id"] for one in report["results"]} == planned
    assert {one["outcome"] for one in report["results"]} == {"PASS", outcome}
    bad = [one["id"] for one in report["results"] if one["outcome"] == outcome]
    assert json.loads((tmp_path / "report.json").read_text())["results"] == report["results"]
    told = [
        case for case in ET.parse(tmp_path / "junit.xml").iter("testcase") if len(case) and case[0].tag != "system-out"
    ]
    commands = [case[0].text.rpartition("replay: ")[2] for case in told]
    assert {shlex.split(command)[-1] for command in commands} == set(bad)
    pages = [(tmp_path / page).read_text() for page in ("report.md", "report.html")]
    assert all(one in page for one in bad for page in pages)
    again = site.replay(commands[0], "--timeout", f"{PATIENCE:g}", "--workers", "1")
    assert again.returncode == 1
    assert f"{outcome} {shlex.split(commands[0])[-1]}" in again.stdout


@pytest.mark.parametrize("name", BROKEN)
def test_a_manifest_that_does_not_parse_is_one_message(site, name):
    """Exit code 2, the file and the place, no traceback; and the others still list."""
    done = site.run("conformance", "run", name)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: backend {name!r} is broken: ")
    assert BROKEN[name][-1] in done.stderr
    assert "raises" in {one["name"] for one in json.loads(site.run("list", "--json").stdout)["backends"]}


def test_an_unknown_backend_is_one_message(site):
    """Exit code 2, with the nearest name."""
    done = site.run("conformance", "run", "segfalts")
    assert done.returncode == 2
    assert done.stderr.startswith("error: no backend 'segfalts'; did you mean segfaults?")
