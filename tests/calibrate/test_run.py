"""Calibration: what is timed, what is recorded of those that fail, and that it goes on where it ended."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from attn_backends import Device, Policy, select
from attn_backends.bench.cell import Cell
from attn_backends.calibrate import run as run_module
from attn_backends.calibrate.crew import Member
from attn_backends.calibrate.points import Point
from attn_backends.calibrate.run import Plan, calibrate
from attn_backends.errors import AttnBackendsError
from attn_backends.selector.measured.bucket import bucket_of
from attn_backends.selector.measured.database import read_rows
from attn_backends.selector.measured.machine import Machine, device_key
from attn_backends.selector.measured.standing import stored_times
from tests.calibrate.fakes import FAKES, SETUP, register_all, unregister_all

ROOT = Path(__file__).parents[2]
CPU = Device.of("cpu")
TWO = ("quick", "slow")


def point(length: int) -> Point:
    """A causal prefill of four heads over two."""
    cell = Cell(
        id=f"s{length}", panel="p", x=length, phase="prefill", dtype="float32", sequences=((1, length, length),),
        num_q_heads=4, num_kv_heads=2, head_dim=16, causal=True,
    )  # fmt: skip
    return Point(cell, bucket_of(cell.request()))


def plan(path: Path, *lengths: int, backends: tuple[str, ...] = TWO, **more) -> Plan:
    """Those lengths, those backends, on the CPU."""
    return Plan(
        points=tuple(map(point, lengths)), path=path, device="cpu", facts=CPU, backends=backends, setup=SETUP,
        setup_path=(str(ROOT),), **more,
    )  # fmt: skip


def rows_of(path: Path) -> dict:
    """(backend, length as a power of two) -> row."""
    rows = read_rows(path, Machine.here())[device_key(CPU)]
    return {(row.backend, row.bucket.place[-1]): row for row in rows}


@pytest.fixture
def fakes():
    register_all()
    yield
    unregister_all()


@pytest.mark.slow
def test_what_misbehaves_is_recorded_and_the_rest_is_timed(tmp_path, fakes):
    """A crash, a hang, a wrong result and a lack of memory each cost their own backend its times, and nobody else."""
    path = tmp_path / "times.sqlite"
    ran = calibrate(plan(path, 64, 128, backends=tuple(FAKES), timeout=8.0))
    statuses = {(name, place): row.status for (name, place), row in rows_of(path).items()}
    assert statuses == {
        ("quick", 6): "ok", ("quick", 7): "ok", ("slow", 6): "ok", ("slow", 7): "ok",
        ("dies", 6): "crash", ("dies", 7): "excluded", ("hangs", 6): "timeout", ("hangs", 7): "excluded",
        ("hungry", 6): "ok", ("hungry", 7): "out_of_memory", ("wrong", 6): "wrong", ("wrong", 7): "wrong",
    }  # fmt: skip
    assert "SIGSEGV" in ran.gone["dies"]
    assert rows_of(path)["slow", 6].ms > 20 > rows_of(path)["quick", 6].ms
    decision = select(
        point(128).cell.request(), device=CPU, measurements=stored_times(path), policy=Policy(only=frozenset(FAKES))
    )
    assert [one.name for one in decision.candidates if one.measured_ms is not None] == ["quick", "slow"]


def test_it_goes_on_where_it_ended(tmp_path, fakes, monkeypatch):
    """The minutes end a run between two buckets; the next one times what is left, a third one nothing."""
    path = tmp_path / "times.sqlite"
    late = iter([False, True, True])
    monkeypatch.setattr(run_module._Run, "_late", lambda self: next(late))
    first = calibrate(plan(path, 32, 64, 128))
    assert (first.timed, first.left) == (1, 2)
    assert {place for _, place in rows_of(path)} == {5}
    monkeypatch.undo()
    second = calibrate(plan(path, 32, 64, 128))
    assert (second.timed, second.known, second.left) == (2, 1, 0)
    monkeypatch.setattr(run_module, "Crew", _NoCrew)
    third = calibrate(plan(path, 32, 64, 128))
    assert (third.timed, third.known) == (0, 3)


def test_a_time_below_the_floor_is_not_believed(tmp_path, fakes, monkeypatch):
    """What the device cannot do is stored with its floor beside it, and counts for nothing."""
    fast = Device(kind="cpu", name="cpu", num_sms=CPU.num_sms, memory_bandwidth=1e11, matrix_rates=(("float32", 1e12),))
    assert device_key(fast) == device_key(CPU)
    times = {"quick": 50.0, "slow": 0.001}
    answers = {
        name: {"status": "ok", "ms": ms, "q25": ms, "q75": ms, "samples": 3, "why": ""} for name, ms in times.items()
    }
    monkeypatch.setattr(run_module, "Crew", _TableCrew)
    monkeypatch.setattr(_TableCrew, "answers", answers)
    path = tmp_path / "times.sqlite"
    calibrate(dataclasses.replace(plan(path, 4096), facts=fast))
    assert set(rows_of(path)) == {("quick", 12)}


class _NoCrew:
    """Where nothing may be timed."""

    def __init__(self, *_args, **_kwargs):
        self.gone = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def start(self, names):
        assert not list(names)


class _TableCrew(_NoCrew):
    """Answers out of a table instead of processes."""

    answers: ClassVar[dict] = {}
    asked: ClassVar[list] = []

    def start(self, names):
        pass

    def member(self, name):
        return None

    def time(self, name, cell, kind, timeout, *, best=None):
        self.asked.append((name, cell.id))
        return self.answers.get(name, {"status": "ok", "ms": 1.0, "q25": 0.9, "q75": 1.1, "samples": 3, "why": ""})


def test_what_failed_is_tried_again_only_when_asked(tmp_path, fakes, monkeypatch):
    """A recorded crash stays; `retry` gives it another chance, `fresh` gives everybody one."""
    monkeypatch.setattr(run_module, "Crew", _TableCrew)
    monkeypatch.setattr(_TableCrew, "answers", {"slow": {"status": "crash", "why": "it died"}})
    monkeypatch.setattr(_TableCrew, "asked", [])
    path = tmp_path / "times.sqlite"
    assert calibrate(plan(path, 64)).timed == 1
    assert calibrate(plan(path, 64)).timed == 0
    monkeypatch.setattr(_TableCrew, "answers", {})
    assert calibrate(plan(path, 64, retry=True)).statuses == {"slow": {"ok": 1}, "quick": {"ok": 1}}
    assert calibrate(plan(path, 64, fresh=True)).timed == 1
    assert rows_of(path)["slow", 6].status == "ok"


def test_the_clock_on_the_wall_decides_nothing(tmp_path, fakes, monkeypatch):
    """It jumps by years in the midst of a run; the run is as long as it is."""
    monkeypatch.setattr(run_module, "Crew", _TableCrew)
    years = iter(range(0, 10**9, 10**7))
    monkeypatch.setattr(time, "time", lambda: float(next(years)))
    ran = calibrate(plan(tmp_path / "times.sqlite", 32, 64, 128, minutes=1.0))
    assert (ran.timed, ran.left) == (3, 0)
    assert ran.seconds < 60


def test_where_one_backend_serves_alone_nothing_is_timed(tmp_path, fakes):
    """No time would change anything."""
    ran = calibrate(plan(tmp_path / "times.sqlite", 32, backends=("quick",)))
    assert (ran.timed, ran.no_choice) == (0, 1)


def test_a_pretended_device_is_refused(tmp_path):
    """Times are measured where the device is."""
    pretended = Plan(points=(), path=tmp_path / "x", device="cuda", facts=Device.pretend("h200"))
    with pytest.raises(AttnBackendsError, match="pretended"):
        calibrate(pretended)


SCRIPT = """
import sys
from pathlib import Path
from tests.calibrate.fakes import register_all
from tests.calibrate.test_run import plan
from attn_backends.calibrate.run import calibrate
register_all()
print(calibrate(plan(Path(sys.argv[1]), 32, 64)).timed)
"""


@pytest.mark.slow
def test_two_at_once_end_consistent(tmp_path):
    """Both end well, and every bucket has one whole set of rows."""
    path = tmp_path / "times.sqlite"
    runs = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [run.communicate(timeout=120)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert all(int(text) in range(3) for text in said)
    rows = rows_of(path)
    assert {key for key, row in rows.items() if row.status == "ok"} == {
        (name, place) for name in TWO for place in (5, 6)
    }


class _Costly(_TableCrew):
    """`slow` is ten times slower than `quick`, and has used up seconds as told."""

    spent = 0.0

    def member(self, name):
        return Member(child=None, spent_s=self.spent if name == "slow" else 0.0)


@pytest.mark.parametrize(
    ("spent", "times", "statuses"),
    [
        (7.0, (10.0, 1.0), ["ok", "capped", "capped"]),
        (2.0, (10.0, 1.0), ["ok", "ok", "ok"]),
        (7.0, (1.1, 1.0), ["ok", "ok", "ok"]),
        (25.0, (1.1, 1.0), ["capped", "capped", "capped"]),
    ],
    ids=["a-loser-that-costs", "a-loser-that-costs-little", "near-the-best", "whoever-takes-most"],
)
def test_who_costs_much_and_gains_nothing_is_capped(tmp_path, fakes, monkeypatch, spent, times, statuses):
    """Of one minute: a twenty-fifth for one that was never near the best, four tenths for anybody."""
    monkeypatch.setattr(run_module, "Crew", _Costly)
    monkeypatch.setattr(_Costly, "spent", spent)
    answers = {
        name: {"status": "ok", "ms": ms, "q25": ms, "q75": ms, "samples": 3, "why": ""}
        for name, ms in zip(("slow", "quick"), times, strict=True)
    }
    monkeypatch.setattr(_TableCrew, "answers", answers)
    path = tmp_path / "times.sqlite"
    calibrate(plan(path, 32, 64, 128, minutes=1.0))
    rows = rows_of(path)
    assert sorted(rows["slow", place].status for place in (5, 6, 7)) == sorted(statuses)
    assert all(rows["quick", place].status == "ok" for place in (5, 6, 7))


def test_one_that_compiles_for_every_shape_is_known_by_most_of_them():
    """Six slow starts on kinds that it knew; a few among many are no habit."""
    assert Member(child=None, again=7, slow_starts=6).compiles_for_every_shape
    assert not Member(child=None, again=5, slow_starts=5).compiles_for_every_shape
    assert not Member(child=None, again=20, slow_starts=6).compiles_for_every_shape


@pytest.fixture
def predicted(monkeypatch):
    """Sets what the cost model says of the fakes, in milliseconds by name and length."""

    def set_to(**tables):
        def decision_of(cell, device, registry):
            decision = real(cell, device, registry)
            found = [
                one._replace(predicted_ms=tables[one.name][cell.x]) if one.name in tables else one
                for one in decision.candidates
            ]
            return SimpleNamespace(candidates=tuple(found))

        monkeypatch.setattr(run_module, "decision_of", decision_of)

    real = run_module.decision_of
    monkeypatch.setattr(run_module, "Crew", _TableCrew)
    monkeypatch.setattr(_TableCrew, "answers", {})
    monkeypatch.setattr(_TableCrew, "asked", [])
    return set_to


THREE = ("quick", "slow", "hungry")


def test_who_is_predicted_far_behind_is_not_timed_but_known(tmp_path, fakes, predicted):
    """It has a row that says so; the bucket is whole, is not timed again, and a new prediction brings it in."""
    path = tmp_path / "times.sqlite"
    predicted(quick={64: 1.0}, slow={64: 1.1}, hungry={64: 1.5})
    ran = calibrate(plan(path, 64, backends=THREE))
    assert {name for name, _ in _TableCrew.asked} == {"quick", "slow"}
    row = rows_of(path)["hungry", 6]
    assert (row.status, row.why) == ("capped", "predicted to take 1.50 times the best prediction")
    assert ran.spared == {"hungry": {"predicted to take more than 1.4 times the best prediction": 1}}
    assert calibrate(plan(path, 64, backends=THREE)).known == 1
    predicted(quick={64: 1.0}, slow={64: 1.6}, hungry={64: 1.2})
    assert calibrate(plan(path, 64, backends=THREE)).timed == 1
    assert rows_of(path)["hungry", 6].status == "ok"
    assert calibrate(plan(path, 64, backends=THREE)).known == 1


def test_a_new_backend_that_is_far_behind_voids_no_bucket(tmp_path, fakes, predicted):
    """It gets its row without anything being timed."""
    path = tmp_path / "times.sqlite"
    predicted(quick={64: 1.0}, slow={64: 1.1}, hungry={64: 9.0})
    calibrate(plan(path, 64))
    _TableCrew.asked.clear()
    ran = calibrate(plan(path, 64, backends=THREE))
    assert (ran.timed, ran.known, _TableCrew.asked) == (0, 1, [])
    assert rows_of(path)["hungry", 6].status == "capped"


def test_places_with_close_predictions_come_first(tmp_path, fakes, predicted):
    """Within 15 %, within 40 %, then the others; as they came otherwise."""
    lengths = (16, 32, 64, 128, 256)
    seconds = dict(zip(lengths, (2.0, 1.3, 1.1, 1.0, 1.2), strict=True))
    predicted(quick=dict.fromkeys(lengths, 1.0), slow=seconds)
    calibrate(plan(tmp_path / "times.sqlite", *lengths))
    assert list(dict.fromkeys(name for _, name in _TableCrew.asked)) == ["s64", "s128", "s32", "s256", "s16"]


@pytest.mark.parametrize(("minutes", "processes", "calls"), [(None, 2, 4), (None, 0, 0), (1e-6, 2, 0)])
def test_everything_is_compiled_before_it_is_timed(tmp_path, fakes, monkeypatch, minutes, processes, calls):
    """Every size of every place, by who is to be timed there, within a share of the minutes."""
    jobs = []

    def compile_ahead(found, *, deadline, **_):
        jobs.extend(found if deadline is None or deadline > time.monotonic() else ())

    monkeypatch.setattr(run_module, "compile_ahead", compile_ahead)
    monkeypatch.setattr(run_module, "Crew", _TableCrew)
    monkeypatch.setattr(run_module, "sizes_of", lambda cell: (cell,))
    calibrate(plan(tmp_path / "times.sqlite", 32, 64, minutes=minutes, processes=processes))
    assert len(jobs) == calls
    assert {name for _, name in jobs} == (set(TWO) if calls else set())
