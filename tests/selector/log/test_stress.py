"""8 threads in each of 4 processes write 10,000 records each into one folder, with rotation."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from attn_backends.selector.log.schema import validate

PROCESSES, THREADS, RECORDS = 4, 8, 10_000
ROOT = Path(__file__).parents[3]

WRITER = """
import sys, threading
from attn_backends.selector.log.sink import JsonlSink
from tests.selector.log.records import candidate, record
folder, threads, count, max_bytes, max_files = sys.argv[1], *map(int, sys.argv[2:])
sink = JsonlSink(folder, max_bytes=max_bytes, max_files=max_files)
small = record(candidates=[candidate("sdpa_flash", "selected")], nearest=[], environment={"versions": {}})
def write(thread):
    mine = {**small, "registry": str(thread)}
    for _ in range(count):
        sink.write(mine)
running = [threading.Thread(target=write, args=(thread,)) for thread in range(threads)]
for thread in running: thread.start()
for thread in running: thread.join()
assert sink.active
"""
ENVELOPE = re.compile(rb'\{"time":"([^"]+)","pid":(\d+),"rank":(\d+),"seq":(\d+),')


def write_all(folder: Path, records: int, max_bytes: int, max_files: int) -> None:
    arguments = [str(value) for value in (folder, THREADS, records, max_bytes, max_files)]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, *arguments],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "RANK": str(rank % 2)},
        )
        for rank in range(PROCESSES)
    ]  # fmt: skip
    assert [writer.wait(300) for writer in writers] == [0] * PROCESSES


@pytest.mark.slow
def test_no_line_is_lost_torn_or_invalid(tmp_path: Path) -> None:
    """320,000 lines: every one whole and valid, every number of every process there exactly once."""
    write_all(tmp_path, RECORDS, 4 << 20, 1000)
    numbers: dict[tuple[bytes, bytes], set[int]] = {}
    bodies: Counter[tuple[bytes, bytes, bytes]] = Counter()  # one body per process and thread: each is validated once
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        assert data.endswith(b"\n")
        for line in data.splitlines():
            head = ENVELOPE.match(line)
            assert head, line
            process = head[2], head[3]
            assert path.name.startswith(f"decisions-{int(head[3])}-{int(head[2])}.jsonl")
            found = numbers.setdefault(process, set())
            assert int(head[4]) not in found
            found.add(int(head[4]))
            bodies[(*process, b"{" + line[head.end() :])] += 1
    assert [found == set(range(THREADS * RECORDS)) for found in numbers.values()] == [True] * PROCESSES
    assert sorted(bodies.values()) == [RECORDS] * (PROCESSES * THREADS)
    for _pid, _rank, body in bodies:
        validate(json.loads(body))
    assert len(list(tmp_path.iterdir())) > PROCESSES * 5


def test_the_cap_of_each_process_holds(tmp_path: Path) -> None:
    """With room for little, each process keeps its newest whole lines and no byte more than max_bytes * max_files."""
    write_all(tmp_path, 300, 50_000, 3)
    kept: dict[str, list[int]] = {}
    for path in tmp_path.iterdir():
        assert path.stat().st_size <= 50_000
        series = kept.setdefault(path.name.partition(".jsonl")[0], [])
        series += [json.loads(line)["seq"] for line in path.read_text().splitlines()]
    assert len(kept) == PROCESSES
    for series in kept.values():
        assert sorted(series) == list(range(min(series), THREADS * 300))
    assert len(list(tmp_path.iterdir())) <= 3 * PROCESSES
