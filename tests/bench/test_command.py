"""`attn-backends bench` and `attn-backends roofline` as a user meets them."""

from __future__ import annotations

import json

import jsonschema
import pytest
from click.testing import CliRunner

from attn_backends.bench.results import SHIPPED, Results
from attn_backends.cli.main import PROGRAM, cli
from tests.bench.files import results
from tests.bench.small import crashing, registered, right

QUICK = ("bench", "--suite", "prefill", "--cells", "d16 s64", "--device", "cpu")


@pytest.fixture(autouse=True)
def _plain(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)


def run(*words):
    """Run a command line; what it raises beyond exits is the test's failure."""
    result = CliRunner().invoke(cli, words, prog_name=PROGRAM)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_a_run_prints_a_table_and_writes_results_and_page(tmp_path):
    """By default into benchmarks/results/DEVICE; the file keeps the schema and holds the command as it was typed."""
    with registered(good=right):
        result = run(*QUICK, "--backends", "good,sdpa_math", "--seed", "4")
    assert result.exit_code == 0, result.output
    assert "d16 s64 causal" in result.stdout
    folder = tmp_path / "benchmarks" / "results" / "cpu"
    data = json.loads((folder / "prefill.json").read_text())
    jsonschema.validate(data, json.loads(SHIPPED.read_text()))
    assert data["commands"] == [
        "attn-backends bench --suite prefill --backends good,sdpa_math --cells 'd16 s64' --device cpu --seed 4"
    ]
    assert (folder / "prefill.html").read_text().startswith("<!doctype html>")


def test_the_seed_of_a_file_is_kept(tmp_path):
    """Without --seed the first run draws one and the second goes on with it."""
    with registered(good=right):
        run(*QUICK, "--backends", "good", "--out", "o")
        seed = Results.read(tmp_path / "o" / "prefill.json").head["seed"]
        again = run("bench", "--suite", "prefill", "--cells", "d16 s128", "--backends", "good", "--out", "o")
    assert again.exit_code == 0
    file = Results.read(tmp_path / "o" / "prefill.json")
    assert file.head["seed"] == seed
    assert len(file.cells) == 4


def test_a_broken_backend_is_exit_1_and_in_the_table(tmp_path):
    """The others are timed; the reason stands below."""
    with registered(good=right, broken=crashing):
        result = run(*QUICK, "--backends", "good,broken", "--out", "o")
    assert result.exit_code == 1
    assert "broken  2 cells, error: RuntimeError: invalid argument" in result.stdout


def test_json_is_one_document_with_changes_and_verdict(tmp_path):
    """--against compares with an earlier file, --peers-figures says how many figures there were to compare."""
    (tmp_path / "peers.json").write_text("[]")
    with registered(good=right):
        run(*QUICK, "--backends", "good", "--out", "then")
        arguments = ("--against", "then/prefill.json", "--peers-figures", "peers.json", "--json")
        result = run(*QUICK, "--backends", "good", "--out", "now", *arguments)
    (suite,) = json.loads(result.stdout)
    assert {change["cell"] for change in suite["changes"]} == {"d16 s64 full", "d16 s64 causal"}
    assert suite["results"]["peers"] == {"file": "peers.json", "slack": 1.1, "compared": 0, "slower": [], "void": False}
    assert result.exit_code == (0 if suite["good"] else 1)


def test_a_void_run_is_exit_1_and_says_so_in_the_file(tmp_path):
    """A peer that takes longer than its recorded time, here one nobody can reach."""
    figure = {"kind": "fwd", "peer": "flex", "D": 16, "S": 64, "causal": True, "ms": 1e-9}
    (tmp_path / "peers.json").write_text(json.dumps([figure]))
    with registered(good=right):
        result = _with_peer("good", figure, tmp_path)
    assert result.exit_code == 1
    assert "void: 1 of 1 recorded times" in result.stdout
    assert Results.read(tmp_path / "o" / "prefill.json").head["void"].startswith("void: ")


def test_an_8_bit_figure_is_of_the_8_bit_kernel(tmp_path):
    """One name in the figures is two backends here: the one that does not serve a kind of call is not missed there."""
    from attn_backends.bench.peers import read_figures

    figures = [{"kind": kind, "peer": "fa3_fwd", "D": 64, "S": 64, "ms": 1.0} for kind in ("fwd", "fp8fwd")]
    (tmp_path / "peers.json").write_text(json.dumps(figures))
    assert read_figures(tmp_path / "peers.json") == {
        ("prefill", "d64 s64 full", "fa3"): 1.0, ("fp8", "d64 s64 full fp8", "fa3_fp8"): 1.0,
    }  # fmt: skip


def _with_peer(name, figure, tmp_path):
    """A run in which the registered backend is what the figures call a peer."""
    from attn_backends.bench import peers

    table = {**peers._names(), "backends": {figure["kind"]: {figure["peer"]: name}}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers, "_names", lambda: table)
        return run(*QUICK, "--backends", "good", "--out", "o", "--peers-figures", "peers.json")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bench", "--suite", "prefil"), "is not one of"),
        (("bench", "--device", "h200"), "cpu, cuda or cuda:1"),
        (("bench", "--backends", "sdpa_mth"), "did you mean sdpa_math"),
        (("bench", "--cells", "d999"), "keeps no cell"),
        (("roofline", "--config", "llama-3.1-8b", "--softcap", "30"), "says nothing beside --config"),
    ],
)
def test_a_wrong_question_is_exit_2_with_what_is_allowed(words, said):
    """Nothing is run; the answer says what would be right."""
    result = run(*words)
    assert result.exit_code == 2
    assert said in result.output


def test_cells_can_be_listed_without_running():
    """--list names every cell of every suite, in the size that would be run."""
    listed = json.loads(run("bench", "--list", "--size", "full", "--json").stdout)
    assert len(listed["prefill"]) == 45
    assert "b64 c8192 h32/8 d128 dense" in listed["decode"]
    assert "mixed (small): one prefill chunk" in run("bench", "--list", "--size", "small").stdout


def test_roofline_names_floor_bound_and_backends():
    """One request on a pretended device: resources, the floor, every backend with its share of it."""
    words = ("roofline", "--device", "h200", "--seq", "8192", "--head-dim", "128", "--heads", "16")
    text = run(*words).stdout
    assert "bound by matrix products" in text
    (call,) = json.loads(run(*words, "--json").stdout)["calls"]
    assert call["floor"]["ms"] == pytest.approx(4 * 8192**2 * 16 * 128 / 989.4e9)
    by_name = {one["backend"]: one for one in call["backends"]}
    assert by_name["sdpa_cudnn"]["fraction"] == pytest.approx(
        call["floor"]["ms"] / by_name["sdpa_cudnn"]["predicted_ms"]
    )
    assert by_name["sdpa_cpu_flash"]["status"] == "rejected"
    assert by_name["sdpa_cpu_flash"]["predicted_ms"] is None


def test_roofline_of_a_model_has_a_row_per_call():
    """Kinds of layers and phases; decode is bound by memory, prefill by products."""
    calls = json.loads(run("roofline", "--device", "h200", "--config", "llama-3.1-8b", "--json").stdout)["calls"]
    bounds = {call["name"]: call["floor"]["bound"] for call in calls}
    assert bounds == {
        "full prefill": "matrix",
        "full append": "matrix",
        "full decode": "memory",
        "full training": "matrix",
    }
    assert "full decode" in run("roofline", "--device", "h200", "--config", "llama-3.1-8b", "--phase", "decode").stdout


def test_roofline_of_an_unknown_device_says_what_is_missing():
    """No rates, no floor, and no invented numbers."""
    text = run("roofline", "--device", "sm_87").stdout
    assert "no matrix rate or memory bandwidth is known" in text


def test_roofline_against_results_reports_the_error(tmp_path):
    """Typical factor, bias, first choices that were right, and the shares that would fit."""
    told = {
        "d128 s4096 causal": {"sdpa_cudnn": 0.53, "sdpa_flash": 0.9},
        "d64 s1024 full": {"sdpa_cudnn": 0.32, "sdpa_flash": 0.48},
    }
    results("prefill", told).write(tmp_path / "prefill.json")
    error = json.loads(run("roofline", "--against", "prefill.json", "--json").stdout)
    assert (error["picks"], error["right"]) == (2, 2)
    assert {one["backend"] for one in error["backends"]} == {"sdpa_cudnn", "sdpa_flash"}
    assert all(one["typical"] < 1.3 for one in error["backends"])
    assert "first choice right" in run("roofline", "--against", "prefill.json").stdout
