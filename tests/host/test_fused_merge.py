"""The merging kernel says what `merge_states` says: interpreted on any machine, and on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.host import fused_merge_cases as table  # noqa: E402

LIMITS = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def interpreted():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.host.fused_merge_cases"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_close(found, dtype):
    assert found["infinite"] == 0
    assert found["out"] <= LIMITS[dtype]
    assert found["lse"] <= 1e-4


@pytest.mark.parametrize("name", table.CASES)
def test_interpreted(interpreted, name):
    assert_close(interpreted[name], table.CASES[name][-1])


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("name", table.CASES)
def test_on_a_gpu(name, dtype):
    assert_close(table.difference(name, "cuda", dtype), dtype)
