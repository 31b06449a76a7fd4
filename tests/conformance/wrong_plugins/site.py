"""The command line of the suite beside a folder of plugins, each command in a process of its own."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.wrong_plugins.project import Plugin, lay_out

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Site:
    """A folder of the import path, and one of the user's data beside it."""

    folder: Path
    data: Path

    def lay_out(self, plugins: Iterable[Plugin]) -> Site:
        """Install these; returns itself."""
        for plugin in plugins:
            lay_out(plugin, self.folder)
        return self

    def run(self, *words: str, limit: float = 600.0) -> subprocess.CompletedProcess[str]:
        """`attn-backends WORDS`."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ATTN_BACKENDS_")}
        path = os.pathsep.join((str(self.folder), str(ROOT)))
        return subprocess.run(
            [sys.executable, "-m", "attn_backends.cli.main", *words], capture_output=True, text=True, check=False,
            timeout=limit, env={**kept, "PYTHONPATH": path, "XDG_DATA_HOME": str(self.data), "COLUMNS": "200"},
        )  # fmt: skip

    def replay(self, command: str, *more: str) -> subprocess.CompletedProcess[str]:
        """A line that a report gave, as a user pastes it."""
        program, *words = shlex.split(command)
        assert program == "attn-backends"
        return self.run(*words, *more)

    def suite(self, name: str, *words: str, code: int) -> dict[str, Any]:
        """What `attn-backends conformance run NAME WORDS --json` says, with this exit code."""
        done = self.run("conformance", "run", name, *words, "--device", "cpu", "--json")
        assert done.returncode == code, done.stdout[-2000:] + done.stderr[-4000:]
        said: dict[str, Any] = json.loads(done.stdout)
        return said
