"""How log files are named and found: one series per process and rank, the live file and its rotated predecessors.

    decisions-<rank>-<pid>.jsonl        the file being written
    decisions-<rank>-<pid>.jsonl.1      rotated away first, so the oldest
    decisions-<rank>-<pid>.jsonl.2      ... numbers only grow; a rotated file never changes its name again

Numbers that grow, instead of the usual shifting, let a reader follow a live run without seeing a line twice or never.
Writer and reader share this module; standard library only.
"""

from __future__ import annotations

import os
import re

_NAME = re.compile(r"(decisions-\d+-\d+\.jsonl)(?:\.(\d+))?")


def live_name(rank: int, pid: int) -> str:
    """Name of the file that this process and rank appends to."""
    return f"decisions-{rank}-{pid}.jsonl"


def rotations(live: str) -> list[tuple[int, str]]:
    """(number, path) of the rotated files of a live file, oldest first."""
    folder, name = os.path.split(live)
    found = []
    for entry in os.listdir(folder or "."):
        suffix = entry[len(name) + 1 :] if entry.startswith(name + ".") else ""
        if suffix.isdecimal():
            found.append((int(suffix), os.path.join(folder, entry)))
    return sorted(found)


def live_files(folder: str) -> list[str]:
    """Path of the live file of every series in a folder, by name; a series may have lost its live file."""
    matches = map(_NAME.fullmatch, os.listdir(folder))
    return [os.path.join(folder, name) for name in sorted({match[1] for match in matches if match})]


def series_order(path: str) -> tuple[str, float]:
    """Sort key for single files: by series, oldest first, the live file last."""
    match = _NAME.fullmatch(os.path.basename(path))
    if match is None:
        return path, 0
    live = os.path.join(os.path.dirname(path), match[1])
    return live, float(match[2]) if match[2] else float("inf")
