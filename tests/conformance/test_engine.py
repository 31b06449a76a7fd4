"""The engine: workers that die, hang and shout cost one item each, and the record is complete."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from attn_backends.conformance import isolation, worker
from attn_backends.conformance.case import Case
from attn_backends.conformance.engine import run_item
from attn_backends.conformance.isolation import run_isolated
from attn_backends.conformance.item import Item
from attn_backends.conformance.outcome import Outcome, Result
from attn_backends.conformance.record import RunRecord
from attn_backends.conformance.report.headline import headline
from attn_backends.conformance.suite import run_suite, volume
from attn_backends.errors import UnknownBackendError
from attn_backends.registry.certificates import source_digest
from attn_backends.registry.registry import default_registry
from tests.conformance import planted
from tests.plugins.install import HERE

ROOT = str(Path(__file__).parents[2])
PLAIN = Case()
CALM = [Item("oracle", PLAIN.replace(seed=seed)) for seed in range(4)]
ABORTS, LEAVES, HANGS = (Item("oracle", Case(softcap=cap)) for cap in (3.0, 5.0, 7.0))
ABORTED_PROBE = Item("probe-softcap", Case(softcap=3.0))
MOODY = [CALM[0], ABORTS, CALM[1], LEAVES, CALM[2], HANGS, CALM[3], ABORTED_PROBE]


@pytest.fixture(autouse=True)
def _planted():
    planted.register()
    yield
    planted.unregister()


@pytest.fixture(scope="module")
def moody():
    """One run of a backend that shouts always, and aborts, leaves or hangs at times; and what was told as it ran."""
    told = []
    results = run_isolated(
        "planted_moody", MOODY, setup="tests.conformance.planted:register", path=[ROOT], timeout=8.0, workers=2,
        on_result=told.append,
    )  # fmt: skip
    return {result.id: result for result in results}, results, told


@pytest.mark.parametrize(
    ("item", "outcome", "words"),
    [
        pytest.param(ABORTS, Outcome.CRASH, "SIGABRT", id="os.abort"),
        pytest.param(LEAVES, Outcome.CRASH, "SystemExit", id="sys.exit"),
        pytest.param(HANGS, Outcome.TIMEOUT, "no answer", id="hang"),
    ],
)
def test_the_item_that_ends_its_worker_says_so(moody, item, outcome, words):
    """A crash or a hang is the outcome of its own item, with its clauses."""
    result = moody[0][item.id]
    assert result.outcome is outcome, result.message
    assert words in result.message
    assert "SOFTCAP-1" in result.clauses


def test_the_run_goes_on_behind_a_crash(moody):
    """Every other item passes, megabytes of output notwithstanding."""
    for item in CALM:
        assert moody[0][item.id].outcome is Outcome.PASS, moody[0][item.id].message


def test_a_crash_in_a_probe_is_a_refusal(moody):
    """What a backend never promised may go as wrong as it likes."""
    result = moody[0][ABORTED_PROBE.id]
    assert result.outcome is Outcome.REFUSED
    assert "SIGABRT" in result.message


def test_results_come_in_order_and_are_told_once(moody):
    """Two workers share the items; `on_result` sees each once."""
    _by_id, results, told = moody
    assert [result.id for result in results] == [item.id for item in MOODY]
    assert sorted(result.id for result in told) == sorted(item.id for item in MOODY)


def test_a_setup_that_fails_is_said_for_every_item():
    """No worker comes up: every item is a crash with the reason, and the run ends."""
    results = run_isolated("planted_right", CALM[:2], setup="no_such_module:register", timeout=5.0)
    assert {result.outcome for result in results} == {Outcome.CRASH}
    assert "no_such_module" in results[0].message


def test_leaving_the_process_is_a_crash_here_too():
    """Without isolation SystemExit does not end the run."""
    assert run_item("planted_moody", LEAVES).outcome is Outcome.CRASH


def test_an_unknown_backend_is_an_error():
    """Nobody registered it."""
    with pytest.raises(UnknownBackendError):
        run_item("planted_nobody", CALM[0])


def test_a_run_is_recorded_whole():
    """The record holds every result, what was declared and where it ran, and survives JSON."""
    plans = []
    record = run_suite(
        "planted_right", "quick", only=lambda item: item.case.id == PLAIN.id, only_text="plain", on_plan=plans.append,
        isolated=False,
    )  # fmt: skip
    assert record.conforms
    assert {result.id for result in record.results} == {item.id for item in plans[0].items}
    assert record.only == "plain"
    assert record.level == "quick"
    assert record.spec == "1.0"
    assert record.device["kind"] == "cpu"
    assert RunRecord.from_json(record.to_json()).to_json() == record.to_json()


def test_the_volume_says_what_is_declared():
    """Per axis, over all boxes."""
    found = volume(default_registry().snapshot().get("planted_modest"))
    assert found["dtype"] == "{float16, bfloat16, float32}"
    assert found["head_dim"] == "{min 1, max 128}"
    assert "softcap" not in found


def test_declaring_what_no_case_shows_fails_the_run():
    """Zero executed cases for a declared feature is a failure."""
    box = {**planted.BOX, "head_dim": [5000], "head_dim_v": [5000]}
    default_registry().register(
        {"name": "planted_out_of_reach", "version": "1", "capability": [box]}, planted.right,
        backward=lambda call, d_out, d_lse: None,
    )  # fmt: skip
    record = run_suite("planted_out_of_reach", "quick", isolated=False)
    assert not record.conforms
    assert all(result.clauses == ("DECLARE-3",) for result in record.results)


def test_what_does_not_run_here_says_where_it_would():
    """Every architecture that the box declares, or the kind where it declares all of them."""
    boxes = [{**planted.BOX, "device": ["cuda"], "arch": arch} for arch in (["8.0", "9.0"], "any")]
    boxes[1]["head_dim"] = boxes[1]["head_dim_v"] = [48]
    default_registry().register(
        {"name": "planted_elsewhere", "version": "1", "capability": boxes}, planted.right,
        backward=lambda call, d_out, d_lse: None,
    )  # fmt: skip
    record = run_suite("planted_elsewhere", "quick", isolated=False)
    assert {(result.outcome, result.message) for result in record.results} == {
        (Outcome.NOT_RUN, "needs sm_80 or sm_90"), (Outcome.NOT_RUN, "needs cuda"),
    }  # fmt: skip
    assert "(sm_80 or sm_90, cuda)" in headline(record)


def test_the_digest_is_of_what_was_loaded(tmp_path):
    """A source that changes while the suite runs does not pass for what ran."""
    folder = shutil.copytree(HERE / "good_fa" / "good_fa_pkg", tmp_path / "edited_pkg")
    manifest_file, source = folder / "backend.toml", folder / "__init__.py"
    manifest_file.write_text(manifest_file.read_text().replace('"good_fa"', '"planted_edited"'))
    manifest = default_registry().register(manifest_file)
    before = source_digest(manifest)
    record = run_suite(
        "planted_edited", "quick", only=lambda item: item.check == "refused-device", only_text="one", isolated=False,
        on_result=lambda _result: source.write_text("changed = True\n"),
    )  # fmt: skip
    assert source_digest(manifest) != before
    assert record.digest == before


class _Spent:
    """A worker as `isolation` knows it, that only says whether it was closed."""

    closed = False

    def close(self):
        self.closed = True


@pytest.mark.parametrize("spent", [False, True])
def test_a_worker_whose_gpu_is_broken_is_not_used_again(spent):
    """Its item keeps its outcome; the next item gets a fresh process."""
    worker = _Spent()
    result = Result(id="oracle/any", outcome=Outcome.OVERCLAIM, clauses=())
    assert isolation._unless_spent(worker, result, spent) is (None if spent else worker)
    assert worker.closed is spent


class TestABrokenDevice:
    def test_it_is_noticed(self, monkeypatch):
        """By asking it: every call fails after a kernel that went astray."""
        monkeypatch.setattr(torch.cuda, "synchronize", _astray)
        assert worker.broken_device("cuda:0") == "RuntimeError: an illegal memory access"
        assert worker.broken_device("cpu") is None

    def test_an_item_that_seemed_well_is_a_crash(self):
        """What failed anyhow keeps its words."""
        good, bad = (Result(id="x", outcome=outcome, clauses=()) for outcome in (Outcome.PASS, Outcome.FAIL))
        assert worker.unless_broken(good, "an illegal memory access").outcome is Outcome.CRASH
        assert worker.unless_broken(bad, "an illegal memory access") is bad
        assert worker.unless_broken(good, None) is good


def _astray(_device):
    raise RuntimeError("an illegal memory access\nand how to debug it")
