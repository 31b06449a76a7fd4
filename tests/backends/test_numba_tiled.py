"""numba_tiled says what eager says: in numba's CUDA simulator on any machine, and on a GPU; it compiles without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

pytest.importorskip("numba")

from attn_backends.backends.numba_tiled.limits import MOST, check
from attn_backends.device import Device
from attn_backends.request import Request
from tests.backends import numba_tiled_cases as table

LIMITS = {name: 2e-3 if "float16" in name else 3e-6 for name in table.CASES}


def run_apart(*options: str, **environment: str) -> dict:
    """In a process of its own: numba decides when it is imported whether it simulates."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.backends.numba_tiled_cases", *options],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def simulated():
    return run_apart(NUMBA_ENABLE_CUDASIM="1")


@pytest.mark.parametrize("name", table.CASES)
def test_simulated(simulated, name):
    assert simulated[name] <= LIMITS[name]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", table.CASES)
def test_on_a_gpu(name):
    assert table.difference(name, "cuda") <= LIMITS[name]


@pytest.mark.skipif(find_spec("numba_cuda") is None, reason="compiles with numba-cuda")
def test_tiles_stay_in_registers_and_shared_memory():
    """No local memory on any architecture: loops over tiles in registers are unrolled."""
    found = run_apart("--compile")
    assert {name: one["local"] for name, one in found.items() if one["local"]} == {}
    assert all(one["products"] > 16 for one in found.values()), found


def test_more_sequences_than_a_grid_holds_are_refused():
    """With what a grid holds."""
    sizes = {"dtype": "float32", "seq_q": 8, "seq_k": 8, "head_dim_qk": 64, "head_dim_v": 64, "num_kv_heads": 1}
    device = Device.pretend("h200")
    assert check(Request(**sizes, batch=MOST, num_q_heads=MOST), device) == []
    (reason,) = check(Request(**sizes, batch=MOST + 1, num_q_heads=1), device)
    assert (reason.code, reason.axis, reason.got, reason.want) == ("check", "batch", MOST + 1, f"<= {MOST}")
