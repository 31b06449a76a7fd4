"""The ledger: launches, backward passes, captures, replays and errors each apart, conversions with their bytes."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
import torch

from attn_backends import api, attention, launches, register, unregister, watch_graphs
from attn_backends.bench.machinery import EVERYTHING
from attn_backends.host import dispatch, graphs, launch, ledger
from attn_backends.host.ledger import LaunchRecord
from attn_backends.selector.log.evidence import evidence_of, phrase, write_evidence
from tests.selector.scenes import run_python


@pytest.fixture
def q():
    return torch.randn(1, 8, 2, 16)


@pytest.fixture(autouse=True)
def fresh_ledger():
    start_anew()
    before = dict(vars(torch.cuda.CUDAGraph))
    yield
    assert {name: vars(torch.cuda.CUDAGraph).get(name) for name in before} == before
    start_anew()


def start_anew():
    """An empty ledger, and no bound call that counts into an old one."""
    ledger.reset()
    api.last_call = (None, None)
    api.hot_calls.clear()
    dispatch.bound_calls.clear()


def counted(backend):
    """The sums over all decisions of a backend."""
    found = [record for record in launches().values() if record.backend == backend]
    return {
        name: sum(getattr(one, name) for one in found)
        for name in ("launches", "backwards", "captures", "replays", "errors")
    }


def test_forward_and_backward_are_counted_apart(q):
    """Three forwards, of which two with gradients, and one backward."""
    with torch.no_grad():
        attention(q, q, q, backend="sdpa_math")
    leaf = q.clone().requires_grad_()
    attention(leaf, q, q, backend="sdpa_math")
    attention(leaf, q, q, backend="sdpa_math").sum().backward()
    assert counted("sdpa_math") == {"launches": 3, "backwards": 1, "captures": 0, "replays": 0, "errors": 0}


def test_an_error_in_the_backward_is_an_error(q):
    """It is counted under its decision, and no backward is."""

    def fails(call, d_out, d_lse):
        raise RuntimeError("no gradients today")

    box = {**EVERYTHING, "backward": "any"}
    register({"name": "half", "capability": [box]}, lambda call: call.out.zero_(), backward=fails)
    try:
        out = attention(q.clone().requires_grad_(), q, q, backend="half")
        with pytest.raises(RuntimeError, match="no gradients"):
            out.sum().backward()
        assert counted("half") == {"launches": 1, "backwards": 0, "captures": 0, "replays": 0, "errors": 1}
    finally:
        unregister("half")


class Graph:
    """As much of a CUDA graph as the ledger sees."""

    def capture_begin(self, *args):
        launch.is_current_stream_capturing = lambda: True

    def capture_end(self):
        launch.is_current_stream_capturing = lambda: False

    def replay(self):
        return "replayed"


class Derived(Graph):
    """As torch's: the methods are those of a base class."""


@pytest.fixture
def graph_class(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Derived)
    monkeypatch.setattr(launch, "is_current_stream_capturing", lambda: False)
    return Derived


def on_the_gpu(q):
    """A call, bound as those on a GPU are: its launches are asked whether they are captured."""
    with torch.no_grad():
        attention(q, q, q, backend="sdpa_math")
    for bound in [*api.hot_calls.values(), *dispatch.bound_calls.values()]:
        bound.on_gpu = True


def capture(graph, calls):
    graph.capture_begin()
    for call in calls:
        call()
    graph.capture_end()


def test_captures_and_replays_are_counted_apart(q, graph_class):
    """One eager launch, two captured, the graph replayed five times: ten replays, and nothing else moved."""
    on_the_gpu(q)
    with watch_graphs(), torch.no_grad():
        graph = graph_class()
        capture(graph, [lambda: attention(q, q, q, backend="sdpa_math")] * 2)
        for _ in range(5):
            assert graph.replay() == "replayed"
    assert counted("sdpa_math") == {"launches": 1, "backwards": 0, "captures": 2, "replays": 10, "errors": 0}


def test_captures_are_told_from_launches_unwatched(q, graph_class):
    """A captured launch ran nothing, whoever watches; its replays are seen by nobody."""
    on_the_gpu(q)
    graph = graph_class()
    with torch.no_grad():
        capture(graph, [lambda: attention(q, q, q, backend="sdpa_math")])
    graph.replay()
    with watch_graphs():
        graph.replay()
    assert counted("sdpa_math") == {"launches": 1, "backwards": 0, "captures": 1, "replays": 0, "errors": 0}


def test_watching_leaves_torch_as_it_was(graph_class):
    """Nested watchers wrap once; after the last of them the class has its own methods again, inherited ones too."""
    with watch_graphs():
        with watch_graphs():
            assert "replay" in vars(graph_class)
        assert "replay" in vars(graph_class)
    assert not {"replay", "capture_begin", "capture_end"} & set(vars(graph_class))
    assert ledger.on_capture is None


def test_a_graph_that_watched_capture_stays_known(q, graph_class):
    """Captured under one watch, replayed under a later one."""
    on_the_gpu(q)
    graph = graph_class()
    with watch_graphs(), torch.no_grad():
        capture(graph, [lambda: attention(q, q, q, backend="sdpa_math")])
    with watch_graphs():
        graph.replay()
    assert counted("sdpa_math")["replays"] == 1
    number = graphs._graphs[graph].number
    del graph
    assert number not in graphs.captured_launches()


def test_records_subtract():
    """What happened between two looks."""
    before = LaunchRecord(id="i", backend="b", launches=3, errors=1, conversions={"repeat_kv": 10}, captures=2)
    after = LaunchRecord(
        id="i", backend="b", launches=5, errors=1, conversions={"repeat_kv": 30}, captures=2, replays=4
    )
    assert after.since(before) == LaunchRecord(
        id="i", backend="b", launches=2, errors=0, conversions={"repeat_kv": 20}, replays=4
    )
    assert not LaunchRecord(id="i", backend="b", launches=0, errors=0, conversions={}, captures=1).executed


def test_settled_accounts_keep_every_count(q, monkeypatch):
    """Decisions that are out of the cache are totals by id, with nothing lost."""
    monkeypatch.setattr(ledger, "_MAX_ACCOUNTS", 2)
    for length in (2, 4, 8, 16):
        with torch.no_grad():
            tensor = torch.randn(1, length, 2, 16)
            attention(tensor, tensor, tensor, backend="sdpa_math")
    one = list(ledger._accounts.values())[-1]
    one.capture("forward")
    ledger._settle_oldest()
    ledger._settle_oldest()
    assert counted("sdpa_math")["launches"] == 4
    assert counted("sdpa_math")["captures"] == 1


class TestEvidence:
    RECORD: ClassVar[dict] = {
        "id": "ab12", "backend": "b", "launches": 2, "backwards": 0, "captures": 1, "replays": 30, "errors": 0,
        "conversions": {"repeat_kv": 64}, "level": "executed", "kernels": [],
    }  # fmt: skip
    KERNEL: ClassVar[dict] = {"name": "k", "device": "gpu", "count": 2, "replayed": 1, "us": 3.0}

    def test_several_processes_add_up(self, tmp_path, monkeypatch):
        """Counts and bytes are sums, the strongest level counts, and a log file stands for its folder."""
        write_evidence(tmp_path, [self.RECORD])
        monkeypatch.setattr("os.getpid", lambda: 1)
        write_evidence(tmp_path, [{**self.RECORD, "level": "profiled", "kernels": [self.KERNEL]}])
        found = evidence_of("ab12", [tmp_path / "decisions-0-1.jsonl", tmp_path])
        assert (found["level"], found["processes"], found["replays"]) == ("profiled", 2, 60)
        assert found["conversions"] == {"repeat_kv": 128}
        assert found["kernels"] == [self.KERNEL]
        assert phrase(found) == "profiled: 4 launches, 2 captures, 60 replays"

    def test_what_never_ran_is_selected(self, tmp_path):
        """Damaged and foreign files are none."""
        (tmp_path / "evidence-0-1.json").write_text("{")
        (tmp_path / "evidence-0-2.json").write_text('{"schema": "other/1"}')
        (tmp_path / "evidence-0-3.json").write_text('{"schema": "attn.evidence/1", "decisions": [{"id": "ab12"}]}')
        assert evidence_of("ab12", [tmp_path]) is None
        assert phrase(None).startswith("selected")

    @pytest.mark.parametrize(
        ("call", "level"),
        [
            ("from attn_backends import Request\nab.select(Request.from_tensors(q, q, q))", "selected"),
            ("ab.attention(q, q, q)", "executed: 1 launch"),
            ("with ab.profile(): ab.attention(q, q, q)", "profiled: 1 launch"),
        ],
        ids=["selected", "executed", "profiled"],
    )
    def test_log_why_shows_the_level(self, tmp_path, call, level):
        """A process that decides, one that calls, one that profiles: its log says so afterwards."""
        script = f"import torch, attn_backends as ab\nq = torch.randn(1, 8, 2, 16)\n{call}\n"
        done = run_python(script, ATTN_BACKENDS_LOG=str(tmp_path))
        assert done.returncode == 0, done.stderr
        (log,) = tmp_path.glob("decisions-*.jsonl")
        identity = json.loads(log.read_text().splitlines()[0])["id"]
        why = f"import sys\nsys.argv = ['x', 'log', 'why', {identity!r}, {str(tmp_path)!r}]\nfrom attn_backends.cli.main import main\nmain()"
        assert f"evidence {level}" in " ".join(run_python(why).stdout.split())
