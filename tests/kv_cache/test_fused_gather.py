"""`gather_kv`'s kernel brings what torch brings, bit for bit: interpreted on any machine, and through the API on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.kv_cache import fused_gather_cases as table  # noqa: E402

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def interpreted():
    """What the interpreter found, in a process of its own: the choice is made when a kernel is defined."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.kv_cache.fused_gather_cases"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", table.CASES)
def test_interpreted(interpreted, name):
    assert not any(interpreted[name].values()), interpreted[name]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", table.CASES | table.BFLOAT16)
def test_on_a_gpu(name):
    found = table.differences((table.CASES | table.BFLOAT16)[name], "cuda")
    assert not any(found.values()), found
