"""Measuring between calls: it fills the file, keeps its budget, and keeps away where results must repeat."""

from __future__ import annotations

import sqlite3
import time
from types import SimpleNamespace

import pytest
import torch

from attn_backends import RequestError, attention, measure_online, register, select, unregister
from attn_backends.bench.machinery import EVERYTHING
from attn_backends.calibrate import online as online_module
from attn_backends.host.arguments import arguments
from attn_backends.host.reading import read_request
from attn_backends.selector.measured.database import WRITE_WAIT, read_rows
from attn_backends.selector.measured.machine import Machine
from attn_backends.selector.select import use_measurements
from tests.calibrate.fakes import right, slow


@pytest.fixture(autouse=True)
def two_backends():
    for name, run, priority in (("quick", right, 901), ("slow", slow, 902)):
        register({"name": name, "priority": priority, "capability": [EVERYTHING]}, run)
    yield
    unregister("quick")
    unregister("slow")
    use_measurements(None)


@pytest.fixture
def q():
    return torch.randn(1, 32, 2, 16)


def called(q, times, share, path, **arguments):
    """What came of so many calls under measurement."""
    with measure_online(share=share, database=path, device="cpu") as online, torch.no_grad():
        for _ in range(times):
            attention(q, q, q, **arguments)
    return online


def test_calls_fill_the_file_and_the_fastest_takes_over(tmp_path, q, monkeypatch):
    """The slow one stands first by priority, until both were measured."""
    monkeypatch.setattr(online_module.Online, "_affordable", lambda self: True)
    request, _ = read_request(q, q, q, arguments({}))
    assert select(request).backend == "slow"
    path = tmp_path / "times.sqlite"
    online = called(q, 8, 0.5, path)
    assert online.buckets == 1
    assert online.spent_s > 0
    rows = [row for rows in read_rows(path, Machine.here()).values() for row in rows]
    assert {row.backend: row.status for row in rows}.items() >= {"quick": "ok", "slow": "ok"}.items()
    decision = select(request)
    assert (decision.source, decision.backend != "slow") == ("measured", True)


@pytest.mark.parametrize("asked", [{"deterministic": True}, {"batch_invariant": True}], ids=str)
def test_nothing_is_measured_where_results_must_repeat(tmp_path, q, monkeypatch, asked):
    """A call that asks for it, or torch itself."""
    monkeypatch.setattr(online_module.Online, "_affordable", lambda self: True)
    assert called(q, 5, 0.5, tmp_path / "a.sqlite", backend="eager", **asked).spent_s == 0
    torch.use_deterministic_algorithms(True)
    try:
        assert called(q, 5, 0.5, tmp_path / "b.sqlite").spent_s == 0
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("capturing", "idle", "allowed"), [(True, True, False), (False, False, False), (False, True, True)]
)
def test_a_gpu_that_captures_or_works_is_left_alone(tmp_path, q, monkeypatch, capturing, idle, allowed):
    """What a capture sees becomes part of its graph; what is queued would be waited for."""
    with measure_online(database=tmp_path / "times.sqlite", device="cpu") as online:
        pass
    online._device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: SimpleNamespace(query=lambda: idle))
    launch = SimpleNamespace(decision=select(read_request(q, q, q, arguments({}))[0]))
    assert online._allowed(launch) is allowed


def test_the_budget_is_kept(tmp_path, q, monkeypatch):
    """By the monotonic clock: with 1 % of a few milliseconds nothing is begun; with 1 % of an hour it is."""
    assert called(q, 20, 0.01, tmp_path / "a.sqlite").spent_s == 0
    moments = iter(range(0, 10**6, 60))
    monkeypatch.setattr(online_module.time, "monotonic", lambda: float(next(moments)))
    online = called(q, 10, 0.5, tmp_path / "b.sqlite")
    assert 0 < online.spent_s <= 0.5 * 60 * 60


def test_a_locked_file_holds_no_call_up(tmp_path, q, monkeypatch, caplog):
    """Measuring ends with one warning; the call does not wait as long as a calibration would."""
    monkeypatch.setattr(online_module.Online, "_affordable", lambda self: True)
    path = tmp_path / "times.sqlite"
    with measure_online(share=0.5, database=path, device="cpu") as online, torch.no_grad():
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        for _ in range(8):
            attention(q, q, q)
        holder.close()
    assert online.buckets == 0
    assert "locked" in caplog.text
    assert time.monotonic() - started < WRITE_WAIT


def test_a_share_is_a_share():
    """Not percent."""
    with pytest.raises(RequestError, match="between 0 and 1"), measure_online(share=5):
        pass
