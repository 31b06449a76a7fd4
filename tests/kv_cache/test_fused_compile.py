"""The kernels of the cache operations compile for sm_90 without spills. Nothing runs on a device."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="compiles with Triton")
pytestmark = pytest.mark.slow


def test_every_kernel_compiles_without_stack() -> None:
    """Every format and granularity of a write and a gather, and a merge."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kv_cache.fused_compiling"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 27
    assert not [name for name, (_registers, stack) in found.items() if stack]
