"""The command line as a user meets it, without this machine's knobs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from attn_backends.cli.main import PROGRAM, cli


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("ATTN_BACKENDS_") or name in ("NO_COLOR", "FORCE_COLOR", "RANK", "LOCAL_RANK"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def run() -> Callable[..., Result]:
    """Run a command line; what it raises beyond exits is the test's failure."""

    def invoke(*words: str, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(cli, words, prog_name=PROGRAM, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


@pytest.fixture
def run_json(run: Callable[..., Result]) -> Callable[..., Any]:
    """Run a command line with --json and read what it prints."""
    return lambda *words, **more: json.loads(run(*words, "--json", **more).stdout)
