"""Actually loading backends, from outside: one child process for all, a new one behind each that crashed or hung."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

PROBE = "attn_backends.cli.load_probe"
PATIENCE = 180.0  # seconds for all backends together; importing torch is most of it


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """How loading one backend went; `error` is None where it went well."""

    name: str
    error: str | None
    seconds: float | None = None


def load_all(names: Sequence[str], patience: float = PATIENCE) -> list[LoadResult]:
    """Load every named backend in a child process."""
    left = list(names)
    found: list[LoadResult] = []
    while left:
        done, culprit = _round(left, patience)
        found += done
        left = left[len(done) :]
        if culprit is not None and left:
            found.append(LoadResult(name=left.pop(0), error=culprit))
    return found


def _round(names: Sequence[str], patience: float) -> tuple[list[LoadResult], str | None]:
    """(results until the child ended, what ended it before its time)."""
    command = [sys.executable, "-m", PROBE, *names]
    try:
        child = subprocess.run(  # noqa: S603  # this interpreter, with names of backends
            command, capture_output=True, text=True, timeout=patience, check=False
        )
    except subprocess.TimeoutExpired as error:
        return _results(_text(error.stdout)), f"did not load within {patience:.0f} s"
    results = _results(child.stdout)
    return results, None if len(results) == len(names) else _death(child)


def _text(said: str | bytes | None) -> str:
    """What a child had said when its time was up: bytes on some systems even in text mode."""
    return said.decode(errors="replace") if isinstance(said, bytes) else said or ""


def _results(said: str) -> list[LoadResult]:
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{") and line.endswith("}")]
    return [LoadResult(name=one["end"], error=one["error"], seconds=one["seconds"]) for one in lines if "end" in one]


def _death(child: subprocess.CompletedProcess[str]) -> str:
    last = (child.stderr.strip().splitlines() or ["it said nothing"])[-1]
    how = f"by signal {-child.returncode}" if child.returncode < 0 else f"with status {child.returncode}"
    return f"loading it ended the process {how}: {last}"
