"""`JsonlSink`: appends decision records to one file per process and rank, one JSON object a line.

A log must never cost a call: whatever goes wrong (a full disk, a size limit, a read-only folder) is one warning on the
logger `attn_backends`, after which this sink is off for the life of the process. It is not a queue: a line is on its
way to the disk when `write` returns. Standard library only; imported by the selector when a sink is wanted.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import weakref
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from attn_backends.selector.log.files import live_name, rotations
from attn_backends.selector.log.scrub import scrub

MIB = 1 << 20
ENVELOPE = ("time", "pid", "rank", "seq")
_OPEN = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
_CLOSED = -1
# What a full or broken disk, a path that is no path and a record that is no record can raise.
_FAILURES = (OSError, ValueError, TypeError, RuntimeError)


class JsonlSink:
    """Writes records below `folder`; safe with many threads, with forks, and beside other processes.

    A file that would grow beyond `max_bytes` is rotated (see `files`); once a process has more than `max_files` files,
    the live one included, its oldest is deleted. A process thus keeps at most `max_bytes * max_files` bytes, and loses
    no line until it has written that much. One line longer than `max_bytes` gets a file of its own.

    Nothing is touched before the first `write`. `active` turns False, for good, at the first failure.
    """

    def __init__(self, folder: str | os.PathLike[str], *, max_bytes: int = 64 * MIB, max_files: int = 8) -> None:
        if max_bytes < 1 or max_files < 1:
            raise ValueError(f"max_bytes = {max_bytes}, max_files = {max_files}: both must be at least 1")
        self.folder = os.path.abspath(folder)
        self.max_bytes = max_bytes
        self.max_files = max_files
        self.active = True
        self.path: str | None = None  # the live file, once there is one
        self._lock = threading.RLock()
        self._fd = _CLOSED
        self._size = self._seq = self._pid = self._rank = 0
        _SINKS.add(self)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record, scrubbed, behind the envelope `time, pid, rank, seq`. Never raises, never changes it."""
        if not self.active:
            return
        try:
            body = json.dumps(
                scrub({key: value for key, value in record.items() if key not in ENVELOPE}), separators=(",", ":")
            )
            with self._lock:
                if self.active:
                    self._append(body)
        except _FAILURES as error:
            self._give_up(error)

    def close(self) -> None:
        """Close the file; a later `write` opens it again."""
        with self._lock:
            fd, self._fd = self._fd, _CLOSED
            if fd != _CLOSED:
                os.close(fd)

    def _append(self, body: str) -> None:
        if self._fd == _CLOSED:
            self._open()
        line = f"{{{self._envelope()}{',' if len(body) > 2 else ''}{body[1:]}\n".encode("ascii")
        if self._size and self._size + len(line) > self.max_bytes:
            self._rotate()
        written = os.write(self._fd, line)
        if written != len(line):
            self._take_back(written)
            raise OSError(errno.ENOSPC, f"only {written} of a line's {len(line)} bytes could be written")
        self._size += written
        self._seq += 1

    def _envelope(self) -> str:
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        return f'"time":"{now}","pid":{self._pid},"rank":{self._rank},"seq":{self._seq}'

    def _open(self) -> None:
        os.makedirs(self.folder, exist_ok=True)
        self._pid, self._rank = os.getpid(), current_rank()
        self.path = os.path.join(self.folder, live_name(self._rank, self._pid))
        self._fd = os.open(self.path, _OPEN, 0o644)
        self._size = os.fstat(self._fd).st_size
        if self._size and not self._ends_with_newline():
            self._size += os.write(self._fd, b"\n")  # a namesake was killed in mid-line

    def _ends_with_newline(self) -> bool:
        os.lseek(self._fd, -1, os.SEEK_END)
        return os.read(self._fd, 1) == b"\n"

    def _rotate(self) -> None:
        live = self.path
        assert live is not None
        self.close()
        past = rotations(live)
        newest = f"{live}.{past[-1][0] + 1 if past else 1}"
        os.rename(live, newest)
        kept = [path for _number, path in past] + [newest]
        for path in kept[: max(0, len(kept) - (self.max_files - 1))]:
            _delete(path)
        self._open()

    def _take_back(self, written: int) -> None:
        """Remove a line that was written in part, so that no reader ever takes it for ours."""
        if os.fstat(self._fd).st_size == self._size + written:
            os.ftruncate(self._fd, self._size)
        else:  # somebody else has appended behind it: cutting would take their line too
            os.write(self._fd, b"\n")

    def _give_up(self, error: Exception) -> None:
        with self._lock:
            if not self.active:
                return
            self.active = False
            try:
                self.close()
            except OSError:  # some file systems report a failed write only here; it is reported below in any case
                pass
        logging.getLogger("attn_backends").warning(
            "decision log in %s: %s: %s; no further decision of this process is written to a file",
            self.folder, type(error).__name__, error,
        )  # fmt: skip

    def leave_to_parent(self) -> None:
        """In a forked child: the file, its numbering and a lock that nobody will ever release stay with the parent."""
        self._lock = threading.RLock()
        self._seq = 0
        try:
            self.close()
        except OSError:  # closed by somebody who closes every descriptor after a fork
            self._fd = _CLOSED


def current_rank() -> int:
    """Rank of this process as launchers tell it (`RANK`, else `LOCAL_RANK`), 0 without one."""
    for name in ("RANK", "LOCAL_RANK"):
        text = os.environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return 0


def _delete(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:  # a namesake on another machine was faster
        pass


_SINKS: weakref.WeakSet[JsonlSink] = weakref.WeakSet()


def _after_fork() -> None:
    for sink in list(_SINKS):
        sink.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
