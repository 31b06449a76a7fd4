"""Measured times from a file: what they decide, and above all what they never do."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import multiprocessing
import os
import sqlite3

import pytest

from attn_backends import Decision, Device, Environment, add_hooks, hookimpl, remove_hooks, use
from attn_backends.selector.log.schema import validate
from attn_backends.selector.measured.database import DatabaseError, Writer, read_rows
from attn_backends.selector.measured.machine import device_key
from attn_backends.selector.measured.standing import stored_times
from attn_backends.selector.select import changes, use_measurements
from tests.selector.measured_rows import HERE, MACHINE, row, stored, written
from tests.selector.scenes import backend, decide, registry, request, run_python

ANY = {"batch_invariant": "any"}
MADE = registry(*(backend(name, priority=rank, box=ANY) for rank, name in enumerate("abc", 1)))
FASTER_B = {"a": 5.0, "b": 3.0, "c": 4.0}


class WantsA:
    """A rank hook."""

    @hookimpl
    def attn_backends_rank(self, request, candidates):
        return ["a"]


def file_of(tmp_path, times=FASTER_B, made=MADE, **changes):
    return written(tmp_path / "times.sqlite", [row(made, name, ms, **changes) for name, ms in times.items()])


def ask(path, made=MADE, policy=None, **arguments):
    arguments.setdefault("device", HERE)
    return decide(made, policy, measurements=stored(path), **arguments)


@pytest.fixture
def hook():
    name = add_hooks(WantsA(), "wants_a")
    yield name
    remove_hooks(name)


class TestWhoDecides:
    @pytest.mark.parametrize(
        ("policy", "asked", "winner", "source"),
        [
            ({}, None, "b", "measured"),
            ({}, "a", "a", "explicit"),
            ({"pin": "a"}, None, "a", "explicit"),
            ({"prefer": ["a"]}, None, "a", "prefer"),
            ({"rank_hooks": ["wants_a"]}, None, "a", "rank_hook"),
            ({"block": ["b"]}, None, "c", "measured"),
            ({"only": ["a", "c"]}, None, "c", "measured"),
        ],
        ids=["nobody", "backend=", "pin", "prefer", "hook", "block", "only"],
    )
    def test_a_measurement_never_beats_what_was_asked_for(self, tmp_path, hook, policy, asked, winner, source):
        """B is the fastest by far, and gets the calls that nobody decided otherwise."""
        decision = ask(file_of(tmp_path), policy=policy, backend=asked)
        assert (decision.backend, decision.source) == (winner, source)

    def test_a_scope_beats_it(self, tmp_path):
        """`with use("a")` stands above measured time."""
        with use("a", phase="prefill"):
            decision = ask(file_of(tmp_path))
        assert (decision.backend, decision.source) == ("a", "scope")

    def test_a_batch_invariant_call_is_ranked_without_it(self, tmp_path):
        """A time hangs on the batch, so it counts for nothing there."""
        asked = request(batch_invariant=True)
        decision = ask(file_of(tmp_path, asked=asked), request=asked)
        assert (decision.backend, decision.source) == ("c", "priority")


class TestWhatCounts:
    @pytest.mark.parametrize(
        "other",
        [
            dataclasses.replace(MACHINE, driver="1.2.3"),
            dataclasses.replace(MACHINE, torch="9.9"),
            dataclasses.replace(MACHINE, triton="9.9"),
        ],
        ids=["driver", "torch", "triton"],
    )
    def test_times_of_other_software_are_ignored(self, tmp_path, other):
        """The same chip under another driver, torch or triton has no times."""
        rows = [row(MADE, name, ms) for name, ms in FASTER_B.items()]
        path = written(tmp_path / "times.sqlite", rows, machine=other)
        assert ask(path).source == "priority"

    @pytest.mark.parametrize(
        "device",
        [
            Device(kind="cuda", name="H100", arch=(9, 0), num_sms=132),
            dataclasses.replace(HERE, num_sms=66),
            Device.pretend("h200"),
        ],
        ids=["another-chip", "a-slice-of-it", "pretended"],
    )
    def test_times_of_another_device_are_ignored(self, tmp_path, device):
        """Neither another chip's, nor a whole one's for a slice of it, nor this machine's for a pretended one."""
        assert ask(file_of(tmp_path), device=device).source == "priority"

    @pytest.mark.parametrize("changed", [{"version": "0.9"}, {"sources": "0" * 32}], ids=["version", "sources"])
    def test_stale_times_never_count(self, tmp_path, changed):
        """One backend was measured in another version: the bucket is not known, and nobody wins by its absence."""
        rows = [row(MADE, "a", 1.0), row(MADE, "b", 3.0), row(MADE, "c", 9.0, **changed)]
        decision = ask(written(tmp_path / "times.sqlite", rows))
        assert (decision.backend, decision.source) == ("c", "priority")
        assert decision.candidate("a").measured_ms is None

    def test_a_backend_that_crashed_is_known_to_have_no_time(self, tmp_path):
        """It was tried, so the others' times count, and it comes behind them."""
        decision = ask(file_of(tmp_path, {"a": 5.0, "b": 3.0, "c": None}))
        assert [one.name for one in decision.candidates] == ["b", "a", "c"]
        assert decision.candidates[2].reasons[0].message == "fits, but b has the shortest measured time"

    def test_an_asked_environment_must_be_the_measured_one(self, tmp_path):
        """A decision for another torch is not made by this one's times."""
        assert ask(file_of(tmp_path), environment=Environment.pretend(torch="2.4")).source == "priority"

    def test_times_follow_the_sources(self, tmp_path):
        """A changed byte beside a manifest makes its times stale, or another kernel; what ranking alone goes by does not."""
        (tmp_path / "mine").mkdir()
        toml = 'schema = 1\nname = "mine"\nversion = "1.0"\napi = ">=1.0,<2"\nkernel = "mine.adapter:run"\n[[capability]]\n'
        box = "\n".join(f'{axis} = "any"' for axis in backend("x")["capability"][0])
        (tmp_path / "mine" / "backend.toml").write_text(toml + box)
        source = tmp_path / "mine" / "adapter.py"
        source.write_text("def run(call): ...\n")

        def made():
            both = registry(backend("a", priority=9))
            both.register(tmp_path / "mine" / "backend.toml")
            return both

        path = file_of(tmp_path, {"a": 5.0, "mine": 3.0}, made())
        assert ask(path, made()).backend == "mine"
        (tmp_path / "mine" / "backend.toml").write_text(f"priority = 8\nstart_us = 3.5\n{toml}{box}")
        assert ask(path, made()).source == "measured"
        (tmp_path / "mine" / "backend.toml").write_text(toml.replace("adapter:run", "adapter:other") + box)
        assert ask(path, made()).source == "priority"
        (tmp_path / "mine" / "backend.toml").write_text(toml + box)
        assert ask(path, made()).source == "measured"
        source.write_text("def run(call): call\n")
        assert ask(path, made()).source == "priority"

    @pytest.mark.parametrize(
        ("block", "slow_a", "winner", "source"),
        [([], False, "b", "measured"), (["b"], False, "a", "measured"), (["b"], True, "c", "cost_model")],
        ids=["all", "the-others", "the-one-left-out-may-be-faster"],
    )
    def test_one_left_out_as_far_behind_is_known_where_it_is(self, tmp_path, block, slow_a, winner, source):
        """`c` was not timed. It does not win by a time; nor does somebody whom it is predicted to be ahead of."""
        starts = {"a": 90 if slow_a else 2, "b": 1, "c": 50}
        made = registry(*(backend(name, efficiency={"matrix": 0.5}, start_us=us) for name, us in starts.items()))
        path = file_of(tmp_path, {"a": 5.0, "b": 3.0}, made)
        written(path, [row(made, "c", None, status="capped")])
        peaks = {key: value for key, value in Device.pretend("h200").to_json().items() if key != "pretended"}
        decision = ask(path, made, {"block": block}, device=Device.from_json(peaks))
        assert (decision.backend, decision.source) == (winner, source)


class TestNeighbours:
    LENGTHS = (512, 2048)

    def times_at(self, tmp_path, *tables, lengths=LENGTHS):
        rows = [
            row(MADE, name, ms, request(seq_q=length, seq_k=length))
            for length, table in zip(lengths, tables, strict=True)
            for name, ms in table.items()
        ]
        return written(tmp_path / "times.sqlite", rows)

    def test_between_neighbours_that_agree(self, tmp_path):
        """At 1024, between 512 and 2048, the time lies between theirs, and the record says where it is from."""
        path = self.times_at(tmp_path, FASTER_B, {"a": 50.0, "b": 12.0, "c": 40.0})
        decision = ask(path, request=request(seq_q=1000, seq_k=1000))
        assert (decision.backend, decision.source) == ("b", "measured")
        assert decision.candidate("b").measured_ms == pytest.approx(6.0)
        assert decision.candidate("b").measured_by == "neighbours"

    def test_a_finer_part_hides_no_coarser_one(self, tmp_path):
        """8192 is known for many heads alone; few heads at that length lie between the lengths that they have."""
        rows = [
            row(MADE, name, ms, request(batch=batch, seq_q=length, seq_k=length))
            for batch, length in ((1, 4096), (1, 16384), (16, 4096), (16, 8192), (16, 16384))
            for name, ms in FASTER_B.items()
        ]
        decision = ask(written(tmp_path / "times.sqlite", rows), request=request(batch=1, seq_q=8192, seq_k=8192))
        assert decision.candidate("b").measured_by == "neighbours"

    @pytest.mark.parametrize(
        ("upper", "lengths", "asked"),
        [
            ({"a": 12.0, "b": 50.0, "c": 40.0}, LENGTHS, 1000),
            (FASTER_B, LENGTHS, 4000),
            (FASTER_B, LENGTHS, 200),
            (FASTER_B, (512, 512 * 64), 4096),
            ({"a": 12.0, "b": 3.0}, LENGTHS, 1000),
        ],
        ids=["they-disagree", "above-all", "below-all", "too-far-apart", "one-lacks-a-backend"],
    )
    def test_where_nothing_is_known(self, tmp_path, upper, lengths, asked):
        """Then measured time says nothing, and the levels below it decide."""
        path = self.times_at(tmp_path, FASTER_B, upper, lengths=lengths)
        assert ask(path, request=request(seq_q=asked, seq_k=asked)).source == "priority"

    @pytest.mark.parametrize(
        "changed",
        [{"causal": False}, {"softcap": 30.0}, {"dtype": "float16"}, {"head_dim_qk": 64}, {"needs_backward": True}],
        ids=str,
    )
    def test_another_kind_of_call_has_no_times(self, tmp_path, changed):
        """What a kernel does differently is never guessed from a call without it."""
        box = {"softcap": "any", "backward": "any"}
        made = registry(*(backend(name, priority=rank, box=box) for rank, name in enumerate("abc", 1)))
        path = file_of(tmp_path, made=made)
        assert ask(path, made).source == "measured"
        assert ask(path, made, request=request(**changed)).source == "priority"


class TestBadFiles:
    @pytest.mark.parametrize(
        "changed",
        [
            {"ms": -1.0, "q25": -1.0, "q75": -1.0}, {"ms": 0.0, "q25": 0.0}, {"ms": float("nan")}, {"ms": float("inf")},
            {"ms": 1e300, "q75": 1e300}, {"ms": 1e-9, "q25": 1e-9}, {"ms": "fast"}, {"ms": None}, {"samples": 0},
            {"q25": 9.0}, {"status": "splendid"}, {"floor_ms": 2.5}, {"floor_ms": "low"}, {"at": None}, {"at": b"\xff"},
            {"why": b"\xff"}, {"status": b"ok"},
        ],
        ids=str,
    )  # fmt: skip
    def test_absurd_rows_are_ignored_with_one_warning(self, tmp_path, caplog, changed):
        """No time of a kernel: the row counts as if it were not there."""
        rows = [dataclasses.replace(row(MADE, "a", 1.0), **changed), row(MADE, "b", 3.0), row(MADE, "c", 4.0)]
        path = written(tmp_path / "times.sqlite", rows)
        with caplog.at_level(logging.WARNING, "attn_backends"):
            decision = ask(path)
        assert (decision.backend, decision.source) == ("c", "priority")
        assert ["1 of 3 rows" in record.getMessage() for record in caplog.records] == [True]

    @pytest.mark.parametrize(
        "changed", ["device = x'01'", f"place = '{'[' * 5000}'", "place = 'NaN'"], ids=["device", "deep", "no-list"]
    )
    def test_a_row_that_names_no_bucket_is_ignored(self, tmp_path, caplog, changed):
        """Whatever stands where a device or a place should."""
        path = file_of(tmp_path)
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"UPDATE times SET {changed} WHERE backend = 'a'")  # one of the three above
        with caplog.at_level(logging.WARNING, "attn_backends"):
            assert ask(path).source == "priority"
        assert ["1 of 3 rows" in record.getMessage() for record in caplog.records] == [True]

    @pytest.mark.parametrize("place", ["[]", "[1, 2, 3, 4, 5, 6, 7, 8, 9]"])
    def test_a_place_of_another_width_is_nobodys(self, tmp_path, place):
        """It says nothing, and takes nothing from the other rows of its kind."""
        path = file_of(tmp_path)
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE times SET place = ? WHERE backend = 'a'", (place,))
        written(path, [row(MADE, "a", 5.0)])
        assert ask(path).source == "measured"
        assert ask(path, request=request(seq_q=4000, seq_k=4000)).source == "priority"

    @pytest.mark.parametrize(
        "damage",
        [
            lambda path: path.write_bytes(b"no database at all" * 100),
            lambda path: path.write_bytes(path.read_bytes()[:3000]),
            lambda path: sqlite3.connect(path).execute("PRAGMA user_version = 99").connection.close(),
            lambda path: (path.unlink(), path.mkdir()),
        ],
        ids=["other-bytes", "cut-short", "newer-format", "a-folder"],
    )
    def test_a_file_of_no_use_costs_one_warning(self, tmp_path, caplog, damage):
        """Decisions go on without it."""
        path = file_of(tmp_path)
        damage(path)
        with caplog.at_level(logging.WARNING, "attn_backends"):
            decision = ask(path)
        assert (decision.backend, decision.source) == ("c", "priority")
        assert len(caplog.records) == 1

    def test_a_locked_file_costs_one_warning(self, tmp_path, caplog):
        """Somebody holds it for himself."""
        path = file_of(tmp_path)
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        try:
            with caplog.at_level(logging.WARNING, "attn_backends"):
                assert ask(path).source == "priority"
        finally:
            holder.close()
        assert ["locked" in record.getMessage() for record in caplog.records] == [True]

    def test_who_writes_is_told_of_a_lock(self, tmp_path):
        """After as long a wait as was asked for, whatever was to be written."""
        path = file_of(tmp_path)
        with Writer(path, device_key(HERE), MACHINE, wait=0.01) as writer:
            holder = sqlite3.connect(path, isolation_level=None)
            holder.execute("BEGIN IMMEDIATE")
            try:
                with pytest.raises(DatabaseError, match="locked"):
                    writer.put([row(MADE, "a", 1.0)])
                with pytest.raises(DatabaseError, match="locked"):
                    writer.forget()
            finally:
                holder.close()

    def test_a_damaged_file_is_set_aside_by_who_writes(self, tmp_path, caplog):
        """Calibration goes on in a new one, and the old one is kept."""
        path = tmp_path / "times.sqlite"
        path.write_bytes(b"no database at all" * 100)
        with caplog.at_level(logging.WARNING, "attn_backends"):
            assert ask(file_of(tmp_path)).backend == "b"
        assert "is damaged" in caplog.text
        assert (tmp_path / f"times.damaged-{os.getpid()}").read_bytes().startswith(b"no database")

    def test_a_file_that_cannot_be_written_is_said(self, tmp_path):
        """The folder is a file."""
        (tmp_path / "here").write_text("")
        with pytest.raises(DatabaseError, match=r"times\.sqlite cannot be written"):
            Writer(tmp_path / "here" / "times.sqlite", "cuda", MACHINE)

    def test_a_pretended_device_has_no_key(self):
        """Nothing is stored under a device that is not here."""
        assert device_key(Device.pretend("h200")) is None


def put_many(path, name, ms):
    """What one of several processes writes: fifty transactions over the same buckets."""
    with Writer(path, device_key(HERE), MACHINE) as writer:
        for round_ in range(50):
            asked = request(seq_q=2 ** (4 + round_ % 8), seq_k=2 ** (4 + round_ % 8))
            writer.put([row(MADE, other, ms, asked, why=name) for other in "abc"])


class TestManyProcesses:
    def test_two_that_write_at_once_end_consistent(self, tmp_path):
        """Every bucket has the rows of one of them, whole; none is lost, none is mixed."""
        path = tmp_path / "times.sqlite"
        context = multiprocessing.get_context("spawn")
        writers = [context.Process(target=put_many, args=(path, name, ms)) for name, ms in (("x", 1.0), ("y", 2.0))]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(60)
        assert [writer.exitcode for writer in writers] == [0, 0]
        rows = read_rows(path, MACHINE)[device_key(HERE)]
        by_bucket = {}
        for one in rows:
            by_bucket.setdefault(one.bucket, set()).add((one.why, one.ms))
        assert len(rows) == 24
        assert all(len(found) == 1 and found <= {("x", 1.0), ("y", 2.0)} for found in by_bucket.values())


class TestTheRecord:
    def test_it_shows_times_and_their_age(self, tmp_path):
        """Measured and predicted time, when and of what it was measured: in the record, and told as an age."""
        decision = ask(file_of(tmp_path, at="2020-01-01T00:00:00+00:00"))
        record = decision.to_json()
        validate(record)
        assert decision.candidate("b").measured_at == "2020-01-01T00:00:00+00:00"
        assert "measured 3 ms, " in decision.explain()
        assert "days ago" in decision.explain()
        assert Decision.from_json(record) == decision

    def test_a_clock_that_was_set_back_has_no_age(self, tmp_path):
        """A time from the future is a time all the same."""
        decision = ask(file_of(tmp_path, at="2999-01-01T00:00:00+00:00"))
        assert decision.backend == "b"
        assert "measured 3 ms\n" in decision.explain()

    def test_older_records_are_read(self, tmp_path):
        """Those without an age."""
        record = ask(file_of(tmp_path)).to_json()
        for candidate in record["candidates"]:
            del candidate["measured_at"], candidate["measured_by"]
        validate(record)
        assert Decision.from_json(record).candidate("b").measured_ms == 3.0

    def test_the_id_hangs_on_the_measurements(self, tmp_path):
        """Other contents, another id; the same contents, the same one, in whatever order they were written."""
        first = ask(file_of(tmp_path)).id
        (tmp_path / "again").mkdir()
        assert ask(file_of(tmp_path / "again", dict(reversed(FASTER_B.items())))).id == first
        assert ask(file_of(tmp_path, {**FASTER_B, "a": 5.5})).id != first

    def test_a_decision_goes_by_the_times_it_was_given(self, tmp_path):
        """A store is a value: what is written later changes nothing in it."""
        path = file_of(tmp_path)
        before = stored(path)
        file_of(tmp_path, {"a": 0.5})
        assert decide(MADE, device=HERE, measurements=before).backend == "b"
        assert ask(path).backend == "a"


class TestOfTheMachine:
    def test_they_are_found_by_default(self, tmp_path):
        """A new process reads the file that the knob names; 0 is none; no torch is imported for it."""
        script = """
import sys
from attn_backends.selector.select import _times
print(type(_times()).__name__, "sqlite3" in sys.modules, "torch" in sys.modules)
"""
        path = file_of(tmp_path)
        named = run_python(script, ATTN_BACKENDS_MEASUREMENTS=str(path))
        assert named.stdout.split() == ["StoredTimes", "True", "False"], named.stderr
        none = run_python(script, ATTN_BACKENDS_MEASUREMENTS="0")
        assert none.stdout.split() == ["FixedTimes", "False", "False"], none.stderr
        absent = run_python(script, ATTN_BACKENDS_MEASUREMENTS=str(tmp_path / "nothing.sqlite"))
        assert absent.stdout.split() == ["FixedTimes", "False", "False"], absent.stderr

    def test_using_others_changes_hot_keys(self, tmp_path):
        """A bound call is not reused across a change of times."""
        before = changes()
        use_measurements(stored_times(file_of(tmp_path)))
        try:
            assert changes() != before
        finally:
            use_measurements(None)
