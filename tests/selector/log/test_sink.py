"""The sink: whole lines, whatever happens to the disk, and never a failed call."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from attn_backends.selector.log.files import rotations
from attn_backends.selector.log.schema import validate
from attn_backends.selector.log.sink import JsonlSink
from tests.selector.log.records import record, unserved


def lines_of(folder: Path) -> list[dict]:
    return [json.loads(line) for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]


def test_every_line_is_a_valid_record_with_the_envelope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record becomes one schema-valid line that also says when, who and the how-manieth."""
    monkeypatch.setenv("RANK", "3")
    sink = JsonlSink(tmp_path)
    for one in (record(), unserved(), record()):
        sink.write(one)
    lines = lines_of(tmp_path)
    for line in lines:
        validate(line)
    assert [(line["seq"], line["rank"], line["pid"]) for line in lines] == [(n, 3, os.getpid()) for n in range(3)]
    assert [path.name for path in tmp_path.iterdir()] == [f"decisions-3-{os.getpid()}.jsonl"]


@pytest.mark.parametrize(
    ("variables", "rank"),
    [({}, 0), ({"LOCAL_RANK": "2"}, 2), ({"RANK": "9", "LOCAL_RANK": "1"}, 9), ({"RANK": "x"}, 0), ({"RANK": "-1"}, 0)],
    ids=["unset", "local", "global wins", "no number", "negative"],
)
def test_the_rank_comes_from_the_launcher(variables, rank, tmp_path, monkeypatch) -> None:
    """RANK, else LOCAL_RANK, else 0; nonsense is 0."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    JsonlSink(tmp_path).write(record())
    assert lines_of(tmp_path)[0]["rank"] == rank


def test_nothing_is_touched_before_the_first_write(tmp_path: Path) -> None:
    """Making and closing a sink creates neither folder nor file."""
    JsonlSink(tmp_path / "log").close()
    assert not (tmp_path / "log").exists()


def test_write_leaves_the_record_alone_and_replaces_an_old_envelope(tmp_path: Path) -> None:
    """A record that was read from a log can be written again: it gets this process's envelope."""
    old = record(time="1999-01-01T00:00:00.000000+00:00", pid=1, rank=7, seq=99)
    copy = json.loads(json.dumps(old))
    JsonlSink(tmp_path).write(old)
    (line,) = lines_of(tmp_path)
    assert old == copy
    assert (line["pid"], line["rank"], line["seq"], line["time"] > "2000") == (os.getpid(), 0, 0, True)


def test_a_closed_sink_opens_again(tmp_path: Path) -> None:
    """close() is no end: numbering goes on in the same file."""
    sink = JsonlSink(tmp_path)
    sink.write(record())
    sink.close()
    sink.write(record())
    assert [line["seq"] for line in lines_of(tmp_path)] == [0, 1]


@pytest.mark.parametrize("sizes", [{"max_bytes": 0}, {"max_files": 0}], ids=str)
def test_impossible_limits_are_refused(sizes: dict, tmp_path: Path) -> None:
    """A cap of nothing is a mistake, told at once."""
    with pytest.raises(ValueError, match="must be at least 1"):
        JsonlSink(tmp_path, **sizes)


# --- rotation ---------------------------------------------------------------------------------------------------------


def test_rotation_numbers_grow_and_no_line_is_lost_below_the_cap(tmp_path: Path) -> None:
    """`.1` is the oldest file; read in order, the lines are all there and in order."""
    sink = JsonlSink(tmp_path, max_bytes=5000, max_files=100)
    for _ in range(50):
        sink.write(record())
    assert sink.path
    past = rotations(sink.path)
    assert [number for number, _path in past] == list(range(1, len(past) + 1))
    assert len(past) > 3
    text = "".join(Path(path).read_text() for path in [*(path for _n, path in past), sink.path])
    assert [json.loads(line)["seq"] for line in text.splitlines()] == list(range(50))


@pytest.mark.parametrize("max_files", [1, 2, 5])
def test_the_cap_holds_and_the_newest_lines_stay(max_files: int, tmp_path: Path) -> None:
    """Never more than max_files files of max_bytes; what is dropped is the oldest."""
    sink = JsonlSink(tmp_path, max_bytes=5000, max_files=max_files)
    for _ in range(100):
        sink.write(record())
        sizes = [path.stat().st_size for path in tmp_path.iterdir()]
        assert len(sizes) <= max_files
        assert max(sizes) <= 5000
    kept = sorted(line["seq"] for line in lines_of(tmp_path))
    assert kept == list(range(kept[0], 100))


def test_a_line_longer_than_a_file_gets_its_own(tmp_path: Path) -> None:
    """A line is never cut to fit."""
    sink = JsonlSink(tmp_path, max_bytes=100, max_files=10)
    for _ in range(3):
        sink.write(record())
    assert len(list(tmp_path.iterdir())) == 3
    assert len(lines_of(tmp_path)) == 3


def test_a_namesakes_torn_line_is_ended(tmp_path: Path) -> None:
    """Process ids come again (in containers, always): a torn tail of the earlier one does not swallow our first line."""
    path = tmp_path / f"decisions-0-{os.getpid()}.jsonl"
    path.write_text('{"schema": "attn.dec')
    JsonlSink(tmp_path).write(record())
    torn, whole = path.read_text().splitlines()
    assert torn == '{"schema": "attn.dec'
    validate(json.loads(whole))


# --- failures ---------------------------------------------------------------------------------------------------------


def on_a_full_disk(folder: Path) -> Path:
    (folder / f"decisions-0-{os.getpid()}.jsonl").symlink_to("/dev/full")
    return folder


def below_a_file(folder: Path) -> Path:
    (folder / "file").write_text("")
    return folder / "file" / "log"


def as_a_file(folder: Path) -> Path:
    (folder / "file").write_text("")
    return folder / "file"


def on_a_read_only_file_system(folder: Path) -> Path:
    return Path("/proc/attn-log")


def with_a_folder_in_the_way(folder: Path) -> Path:
    (folder / f"decisions-0-{os.getpid()}.jsonl").mkdir()
    return folder


def with_no_legal_name(folder: Path) -> Path:
    return folder / "a\0b"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full and /proc")
@pytest.mark.parametrize(
    "place",
    [on_a_full_disk, below_a_file, as_a_file, on_a_read_only_file_system, with_a_folder_in_the_way, with_no_legal_name],
)
def test_a_place_that_cannot_be_written_is_one_warning(place, tmp_path, caplog) -> None:
    """Many threads write, one warning comes, no call fails, and the sink says that it is off."""
    sink = JsonlSink(place(tmp_path))
    with caplog.at_level(logging.WARNING, logger="attn_backends"):
        threads = [threading.Thread(target=lambda: [sink.write(record()) for _ in range(20)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [message.levelname for message in caplog.records] == ["WARNING"]
    assert "decision log" in caplog.text
    assert sink.active is False


LIMITED = """
import logging, resource, signal, sys
from attn_backends.selector.log.sink import JsonlSink
from tests.selector.log.records import record
logging.basicConfig(format="%(levelname)s", stream=sys.stdout)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
sink = JsonlSink(sys.argv[1])
for _ in range(100):
    sink.write(record())
assert not sink.active
print("done")
"""


def test_a_file_size_limit_leaves_only_whole_lines(tmp_path: Path) -> None:
    """At RLIMIT_FSIZE the kernel writes half a line; it is taken back."""
    pytest.importorskip("resource")
    done = run(LIMITED, tmp_path)
    assert done.stdout.split() == ["WARNING", "done"]
    (path,) = tmp_path.iterdir()
    assert path.read_bytes().endswith(b"\n")
    assert len(lines_of(tmp_path)) > 3


@pytest.mark.parametrize("others", ["", "somebody else's line\n"], ids=["alone", "shared file"])
def test_a_short_write_is_taken_back_or_ended(others: str, tmp_path: Path, monkeypatch) -> None:
    """What was torn is cut off; if a namesake wrote behind it, it is ended instead, and their line stays."""
    sink = JsonlSink(tmp_path)
    sink.write(record())
    assert sink.path
    whole = Path(sink.path).read_text()
    real = os.write

    def short(fd: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", real)
        written = real(fd, data[:17])
        if others:
            with Path(sink.path).open("a") as namesake:
                namesake.write("\n" + others)
        return written

    monkeypatch.setattr(os, "write", short)
    sink.write(record())
    text = Path(sink.path).read_text()
    assert text.startswith(whole)
    assert sink.active is False
    if others:
        assert others in text
        assert text.endswith("\n")
    else:
        assert text == whole


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (float("nan"), None),
        (float("inf"), None),
        ((1, (2, 3)), [1, [2, 3]]),
        (object(), "<object>"),
        ("\ud800 \u2028 \x1b[31m \n", "\ud800 \u2028 \x1b[31m \n"),
    ],
    ids=["nan", "inf", "tuples", "any object", "odd text"],
)
def test_any_value_makes_one_line_of_json(value: object, written: object, tmp_path: Path) -> None:
    """Whatever a plugin puts in a reason, the line is strict JSON and one line."""
    JsonlSink(tmp_path).write(record(policy={"value": value}))
    (path,) = tmp_path.iterdir()
    (line,) = path.read_bytes().splitlines()
    assert json.loads(line, parse_constant=pytest.fail)["policy"]["value"] == written


def test_a_record_that_contains_itself_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Even a broken record does not fail the call."""
    endless: dict = {}
    endless["again"] = endless
    JsonlSink(tmp_path).write(record(policy=endless))
    assert len(caplog.records) == 1


# --- processes --------------------------------------------------------------------------------------------------------

FORKS = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")  # Python 3.12 warns about forks beside threads: that is what is tried here
from attn_backends.selector.log.sink import JsonlSink
from tests.selector.log.records import record
sink, stop = JsonlSink(sys.argv[1], max_bytes=50_000, max_files=1000), threading.Event()
def busy():
    while not stop.is_set():
        sink.write(record())
threads = [threading.Thread(target=busy) for _ in range(4)]
for thread in threads: thread.start()
children = []
for _ in range(20):
    time.sleep(0.005)
    child = os.fork()
    if child == 0:
        for _ in range(5): sink.write(record())
        os._exit(0)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
stop.set()
for thread in threads: thread.join()
print(*children)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forks_in_the_midst_of_writing(tmp_path: Path) -> None:
    """A child neither hangs on a lock held at the fork nor writes to its parent's file; it counts from 0."""
    children = set(map(int, run(FORKS, tmp_path).stdout.split()))
    by_pid: dict[int, list[int]] = {}
    for path in tmp_path.iterdir():
        for line in path.read_text().splitlines():
            one = json.loads(line)
            assert path.name.startswith(f"decisions-0-{one['pid']}.jsonl")
            by_pid.setdefault(one["pid"], []).append(one["seq"])
    assert len(children) == 20
    assert all(by_pid[child] == [0, 1, 2, 3, 4] for child in children)
    (parent,) = by_pid.keys() - children
    assert sorted(by_pid[parent]) == list(range(len(by_pid[parent])))


def test_importing_the_sink_loads_nothing_heavy() -> None:
    """The select path may import sink and line: no torch, jinja2, rich or click comes with them."""
    script = (
        "import sys, attn_backends.selector.log.sink, attn_backends.selector.log.line\n"
        "print(*({'torch', 'jinja2', 'rich', 'click', 'jsonschema', 'triton'} & set(sys.modules)))"
    )
    assert run(script).stdout.split() == []


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[3]
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK")}
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=root, env={**environment, "PYTHONPATH": str(root)}, check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
