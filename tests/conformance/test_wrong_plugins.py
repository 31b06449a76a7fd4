"""Ten plugins of third parties, each wrong in one way: a run of the suite names each by its outcome and its clause."""

from __future__ import annotations

import dataclasses
import difflib
from collections import Counter
from importlib.metadata import distributions

import pytest

from attn_backends.conformance.report.replay import replay
from attn_backends.conformance.report.schema import validate
from attn_backends.conformance.spec import clauses
from tests.conformance.wrong_plugins.project import HONEST, control, plugins_of, write_project
from tests.conformance.wrong_plugins.site import Site
from tests.plugins.install import pip_install

WRONG = plugins_of("wrong")
# On these the gate runs the suite as a user does; test_mutants holds it against such mistakes in one process.
SOME = ("misaligned_causal", "over_claim")
REST = [pytest.mark.exhaustive]
NAMED_AMONG = 3  # clauses of the suspects in which the broken one must be


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrong_plugins")
    return Site(folder / "site", folder / "data").lay_out([control(), *WRONG.values()])


def suspects(results, outcome):
    """Clauses by how well "the items that name it" and "the items with this outcome" are the same items (Dice)."""
    named = Counter(clause for one in results for clause in one["clauses"])
    wrong = Counter(clause for one in results if one["outcome"] == outcome for clause in one["clauses"])
    total = sum(one["outcome"] == outcome for one in results)
    return sorted(wrong, key=lambda clause: -2 * wrong[clause] / (named[clause] + total))


def test_there_are_ten():
    """Each names a clause that exists."""
    assert len(WRONG) == 10
    assert {plugin.expected["clause"] for plugin in WRONG.values()} <= set(clauses())


@pytest.mark.parametrize("name", WRONG)
def test_each_is_a_few_words_of_one_file(name):
    """Kernel or manifest of the honest one, two lines changed at most."""
    honest = dataclasses.replace(control(), name=name).files()
    changed = {path: (honest[path], text) for path, text in WRONG[name].files().items() if text != honest[path]}
    ((before, after),) = changed.values()
    assert sum(line.startswith("- ") for line in difflib.ndiff(before.splitlines(), after.splitlines())) <= 2


def test_the_kernel_is_small():
    """Under sixty lines of code, comments and docstrings included."""
    text = control().files()[f"{control().name}/kernel.py"]
    assert sum(bool(line.strip()) for line in text.splitlines()) < 60


def test_pip_leaves_what_the_tests_lay_out(tmp_path, site):
    """The projects are real ones: built and installed with pip, they have the same entry point, version and bytes."""
    chosen = [control(), WRONG["misaligned_causal"]]
    pip_install(tmp_path / "pip", [write_project(plugin, tmp_path) for plugin in chosen])
    for plugin in chosen:
        found = []
        for folder in (tmp_path / "pip", site.folder):
            (dist,) = (one for one in distributions(path=[str(folder)]) if one.name.replace("-", "_") == plugin.name)
            points = [(one.group, one.name, one.value) for one in dist.entry_points]
            files = {path.name: path.read_bytes() for path in sorted((folder / plugin.name).glob("*.*"))}
            found.append((dist.version, points, files))
        assert found[0] == found[1]
        assert HONEST not in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in SOME else REST) for name in WRONG])
def test_the_suite_names_it(site, name):
    """By its outcome, and by its clause among the suspects."""
    expected = WRONG[name].expected
    level, outcome, clause = expected.get("level", "quick"), expected["outcome"], expected["clause"]
    fails = outcome != "UNDERCLAIM"
    report = site.suite(name, "--level", level, code=int(fails))["report"]
    validate(report)
    named = [one for one in report["results"] if one["outcome"] == outcome and clause in one["clauses"]]
    assert named, report["headline"]
    assert clause in suspects(report["results"], outcome)[:NAMED_AMONG], report["headline"]
    assert report["conforms"] is not fails
    assert f" {outcome}" in report["headline"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "item"),
    [
        pytest.param("over_claim", "oracle/fwd-fp32-b2h4x2-s17x33-d40-cap2-randn-s0", marks=REST),
        ("under_claim", "probe-softcap/fwd-fp32-b2h4x2-s17x33-d40-cap2-randn-s0"),
        ("misaligned_causal", "visible/fwd-fp16-b2h4x2-s129x65-d40-causal-cap30-randn-s0"),
        pytest.param("restless_backward", "deterministic/bwd-fp32-b2h4x2-s129x65-d40-det-randn-s0", marks=REST),
    ],
)
def test_the_command_of_a_report_shows_it_again(site, name, item):
    """The outcome, with the item's id, in a run of that item alone."""
    expected = WRONG[name].expected
    again = site.replay(replay(name, item, level=expected.get("level", "quick"), kind="cpu"), "--workers", "1")
    assert again.returncode == 1
    assert f"{expected['outcome']} {item}  " in again.stdout
    assert expected["clause"] in again.stdout


@pytest.mark.slow
def test_the_honest_one_passes_everything(site):
    """Every item of `full`, nothing declared too little; it gets its certificate."""
    said = site.suite(control().name, "--certify", "--unmeasured", code=0)
    counts = said["report"]["counts"]
    assert said["report"]["level"] == "full"
    assert {outcome for outcome, count in counts.items() if count} == {"PASS", "REFUSED"}
    assert said["certificate"]


@pytest.mark.slow
def test_declaring_too_little_is_in_the_way_of_a_certificate(site):
    """A warning in a run is an obstacle under --certify."""
    said = site.suite("under_claim", "--certify", "--unmeasured", code=1)
    assert said["certificate"] is None
    assert any("UNDERCLAIM" in obstacle for obstacle in said["in_the_way"])
