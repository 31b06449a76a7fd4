"""Reading back: in order, merged, filtered, found by id; foreign and broken lines are told and passed over."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_backends.selector.log import reader
from attn_backends.selector.log.compare import diff, diff_text
from attn_backends.selector.log.counts import stats, stats_text
from attn_backends.selector.log.files import rotations
from attn_backends.selector.log.html import render_html
from attn_backends.selector.log.line import info_line, record_text
from attn_backends.selector.log.reader import AmbiguousIdError, Problem, UnknownIdError, find, keep, parse_line, read
from attn_backends.selector.log.since import moment
from attn_backends.selector.log.sink import JsonlSink
from tests.selector.log.records import candidate, many, reason, record, request, unserved


def write(path: Path, *records: dict, raw: bytes = b"") -> Path:
    path.write_bytes(b"".join(json.dumps(one).encode() + b"\n" for one in records) + raw)
    return path


def seqs(records) -> list[int]:
    return [one["seq"] for one in records]


def fail(problem: Problem) -> None:
    pytest.fail(str(problem))


# --- order ------------------------------------------------------------------------------------------------------------


def test_what_a_sink_wrote_comes_back_in_order(tmp_path: Path) -> None:
    """Rotated files first, `.10` after `.9`, then the live one."""
    sink = JsonlSink(tmp_path, max_bytes=4000, max_files=1000)
    for _ in range(60):
        sink.write(record())
    assert len(list(tmp_path.iterdir())) > 11
    assert seqs(read(tmp_path, report=fail)) == list(range(60))
    assert seqs(read(list(tmp_path.iterdir()), report=fail)) == list(range(60))


def test_processes_are_merged_by_time(tmp_path: Path) -> None:
    """Two processes that took turns come back as they took them."""
    turns = many(40)
    write(tmp_path / "decisions-0-1.jsonl.1", *turns[0:20:2])
    write(tmp_path / "decisions-0-1.jsonl", *turns[20::2])
    write(tmp_path / "decisions-1-2.jsonl", *turns[1::2])
    assert seqs(read(tmp_path, report=fail)) == list(range(40))


def test_more_processes_than_can_be_open_at_once(tmp_path: Path) -> None:
    """A thousand ranks do not exhaust file descriptors."""
    resource = pytest.importorskip("resource")
    for pid, one in enumerate(many(400)):
        write(tmp_path / f"decisions-0-{pid}.jsonl", one)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(250, soft), hard))
    try:
        assert sorted(seqs(read(tmp_path, report=fail))) == list(range(400))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("moment_of_rotation", ["before listing", "after listing"])
def test_a_rotation_while_reading_neither_loses_nor_doubles(
    moment_of_rotation: str, tmp_path: Path, monkeypatch
) -> None:
    """The live file is opened first; when it is rotated meanwhile, it is not read a second time under its new name."""
    live = write(tmp_path / "decisions-0-1.jsonl", *many(10)[5:])
    write(tmp_path / "decisions-0-1.jsonl.1", *many(5))

    def rotate_and_list(path: str) -> list[tuple[int, str]]:
        if moment_of_rotation == "after listing":
            listed = rotations(path)
        os.rename(live, f"{live}.2")
        write(live)
        return listed if moment_of_rotation == "after listing" else rotations(path)

    monkeypatch.setattr(reader, "rotations", rotate_and_list)
    assert seqs(read(tmp_path, report=fail)) == list(range(10))


def test_a_series_without_its_live_file(tmp_path: Path) -> None:
    """Rotated files alone are read as well; other files of the folder are left alone."""
    write(tmp_path / "decisions-0-1.jsonl.7", *many(3))
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "decisions-0-1.jsonl.7.gz").write_bytes(b"\x1f\x8b")
    assert seqs(read(tmp_path, report=fail)) == [0, 1, 2]


def test_a_named_file_is_read_alone_whatever_its_name(tmp_path: Path) -> None:
    """A path means that file: no rotated relatives come along."""
    write(tmp_path / "decisions-0-1.jsonl.1", *many(2))
    live = write(tmp_path / "decisions-0-1.jsonl", *many(3)[2:])
    copy = write(tmp_path / "copy.txt", *many(1))
    assert seqs(read(live, report=fail)) == [2]
    assert seqs(read(str(copy), report=fail)) == [0]


def test_empty_and_missing(tmp_path: Path) -> None:
    """An empty folder holds no records; a folder that is not there is an error at once."""
    assert list(read(tmp_path)) == []
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nowhere")


# --- broken lines -----------------------------------------------------------------------------------------------------

BROKEN = {
    "text": (b"hello\n", "not JSON"),
    "empty": (b"\n", "not JSON"),
    "binary": (b"\xff\xfe\x00\n", "not JSON"),
    "nan": (b'{"schema": NaN}\n', "NaN is not a JSON number"),
    "deep": (b"[" * 100_000 + b"\n", "not JSON"),
    "huge number": (b"1" * 10_000 + b"\n", "not"),
    "a number": (b"42\n", "not a decision record: schema is 'int'"),
    "foreign": (b'{"schema": "other/3"}\n', "schema is 'other/3', expected 'attn.decision/1'"),
    "a part": (b'{"schema": "attn.decision/1", "id": "x"}\n', "not a whole decision record: backend: missing"),
    "killed": (json.dumps(record()).encode()[:200], "the last line is cut off"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_line_is_told_with_file_and_line(name: str, tmp_path: Path) -> None:
    """Everything before and after it is read."""
    raw, message = BROKEN[name]
    path = write(tmp_path / "decisions-0-1.jsonl", *many(2))
    with path.open("ab") as file:
        file.write(raw)
    write(tmp_path / "decisions-0-2.jsonl", *many(1))
    problems: list[Problem] = []
    assert len(list(read(tmp_path, report=problems.append))) == 3
    (problem,) = problems
    assert (problem.path, problem.line) == (str(path), 3)
    assert message in problem.message
    assert str(problem).startswith(f"{path}:3: ")


def test_without_a_reporter_problems_are_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody has to ask in order to be told."""
    write(tmp_path / "decisions-0-1.jsonl", raw=b"hello\n")
    assert list(read(tmp_path)) == []
    assert "decisions-0-1.jsonl:1: not JSON" in caplog.text


def test_a_whole_last_line_without_a_newline_is_read(tmp_path: Path) -> None:
    """An editor or a copy may have dropped the last newline."""
    write(tmp_path / "decisions-0-1.jsonl", raw=json.dumps(record()).encode())
    assert len(list(read(tmp_path, report=fail))) == 1


def leaves(value: object, path: tuple = ()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from leaves(item, (*path, key))


WHOLE = many(1)[0] | {
    "candidates": [
        candidate("a", "selected", measured_ms=0.1, conversions=["x"]),
        candidate("b", reasons=[reason("arch", [9, 0]), reason(hint="try")]),
    ],
    "nearest": [{"backend": "b", "changes": [{"axis": "arch", "got": [9, 0], "want": None}]}],
}
PLACES = [path for path in leaves(WHOLE) if path]
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None)
@given(st.sampled_from(PLACES), JUNK | st.just("absent"))
def test_what_the_reader_lets_pass_everything_can_show(path: tuple, junk: object) -> None:
    """A record with junk anywhere is either refused by the reader or shown, counted, compared without an error."""
    odd = json.loads(json.dumps(WHOLE))
    place = odd
    for key in path[:-1]:
        place = place[key]
    if junk == "absent":
        del place[path[-1]]
    else:
        place[path[-1]] = junk
    try:
        read_back = parse_line(json.dumps(odd).encode())
    except ValueError:
        return
    assert info_line(read_back).isprintable()
    assert record_text(read_back)
    assert stats_text(stats([read_back, WHOLE]))
    assert diff_text(diff([WHOLE], [read_back]))
    assert render_html([read_back, WHOLE])
    assert list(keep([read_back], code="arch", phase="decode", since="1h")) in ([], [read_back])


# --- filters and ids --------------------------------------------------------------------------------------------------

SOME = [
    record(id="aa" * 8, time="2026-03-04T10:00:00.000000+00:00"),
    unserved(id="bb" * 8, time="2026-03-04T11:00:00.000000+00:00"),
    record(id="bc" * 8, time="2026-03-04T12:00:00.000000+00:00", request=request(phase="decode", seq_q=1),
           candidates=[candidate("sdpa_flash", "selected"), candidate("eager", reasons=[reason("smem", axis="head_dim")]),
                       candidate("flex", reasons=[reason("arch")])]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, "aa bb bc"),
        ({"backend": "sdpa_flash"}, "aa bc"),
        ({"backend": "none"}, "bb"),
        ({"backend": "flex"}, ""),
        ({"phase": "prefill"}, "aa bb"),
        ({"phase": "decode"}, "bc"),
        ({"code": "head_dim"}, "aa bb bc"),
        ({"code": "smem"}, "bc"),
        ({"rejected": "flex"}, "aa bb bc"),
        ({"rejected": "flex", "code": "head_dim"}, "aa bb"),
        ({"rejected": "sdpa_flash"}, ""),
        ({"since": "2026-03-04 11:00"}, "bb bc"),
        ({"since": "2026-03-04T13:30+02:00"}, "bc"),
        ({"since": "2026-03-04T11:30", "backend": "none"}, ""),
    ],
    ids=str,
)
def test_filters(asked: dict, found: str) -> None:
    """Each alone and together; a phase left out of the record is the default one."""
    assert [one["id"][:2] for one in keep(SOME, **asked)] == found.split()


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-05-04", "2026-05-04T00:00:00.000000+00:00"),
        ("2026-05-04T10:00:01.5Z", "2026-05-04T10:00:01.500000+00:00"),
        ("2026-05-04T10:00-03:00", "2026-05-04T13:00:00.000000+00:00"),
        ("90s", "2026-01-01T23:58:30.000000+00:00"),
        ("1.5h", "2026-01-01T22:30:00.000000+00:00"),
        (" 1 d ", "2026-01-01T00:00:00.000000+00:00"),
    ],
)
def test_moment(text: str, utc: str) -> None:
    """ISO times and ages, in the form of a record's own time."""
    assert moment(text, now=datetime(2026, 1, 2, tzinfo=UTC)) == utc


@pytest.mark.parametrize("text", ["", "yesterday", "3 weeks", "2026-13-01", "9999999999d"])
def test_no_moment(text: str) -> None:
    """What is no time is told at once, with what is allowed."""
    with pytest.raises(ValueError, match="is no time; allowed: 2026-05-04"):
        keep([], since=text)


def test_find_by_prefix() -> None:
    """As much of the id as makes it one decision, in either case; of several records, the last."""
    later = {**SOME[0], "seq": 9}
    assert find([*SOME, later], "aa") is later
    assert find(SOME, "BC")["id"] == "bc" * 8


def test_find_nothing_or_too_much() -> None:
    """Both errors say what to do next."""
    with pytest.raises(UnknownIdError, match="no decision id starts with 'cc'; 3 records were read"):
        find(SOME, "cc")
    with pytest.raises(AmbiguousIdError, match=r"'b' fits 2 decisions: bbbb.*, bcbc.*; give more of the id") as caught:
        find(SOME, "b")
    assert caught.value.ids == ("bb" * 8, "bc" * 8)
