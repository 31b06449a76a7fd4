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
from tests.numba_driver.fake_driver import FakeDriver

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


@pytest.mark.slow
@pytest.mark.parametrize("name", table.CASES)
def test_simulated(simulated, name):
    assert simulated[name] <= LIMITS[name]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", table.CASES)
def test_on_a_gpu(name):
    assert table.difference(name, "cuda") <= LIMITS[name]


@pytest.fixture(
    scope="module", params=[(), pytest.param(("--all",), marks=pytest.mark.exhaustive)], ids=["part", "all"]
)
def found(request):
    """What compiling gives: every width in both types, for float16 the architectures by turns; or all."""
    if find_spec("numba_cuda") is None:
        pytest.skip("compiles with numba-cuda")
    return run_apart("--compile", *request.param)


def test_tiles_stay_in_registers_and_shared_memory(found):
    """No local memory on any architecture: loops over tiles in registers are unrolled."""
    assert {name: one["local"] for name, one in found.items() if one["local"]} == {}
    assert all(one["products"] > 16 for one in found.values()), found


def test_numbers_are_read_four_at_a_time(found):
    """8 reads per four columns of q k^T, 4 + 4 or 16 per four keys of p v, and the maxima twice; as the module says."""
    assert found["128 float32 sm_90"]["wide"] == 8 + (4 + 4 * 4) + 2 * 8
    assert found["64 float32 sm_90"]["wide"] == 8 + (4 + 4 * 2) + 2 * 8


def test_parameters_are_what_a_launch_packs(found):
    """Arrays as numba takes them: null, null, count, size, address, shape and strides; then five numbers."""
    from attn_backends.backends.numba_tiled.launch import KINDS

    words = {"P": "u64", "q": "u64", "f": "f32", "?": "u8"}
    assert found["64 float32 sm_90"]["parameters"] == [words[kind] for kind in KINDS]


def test_a_launch_has_what_the_kernel_reads(monkeypatch):
    """Shapes, strides in bytes and addresses, heads first; what is not there has a shape alone."""
    pytest.importorskip("numba_cuda")
    from attn_backends.backends.numba_tiled import launch
    from attn_backends.backends.numba_tiled.adapter import run

    monkeypatch.setattr(launch, "loaded", lambda *what: what)
    monkeypatch.setattr(launch, "Launch", lambda *given: given_to.append(given) or (lambda *addresses: None))
    FakeDriver(monkeypatch)
    given_to, call = [], table.call_of("heads of 40 and 33", "cpu")
    call.lse = None
    run(call)
    (((kernel, grid, threads, shared, device, kinds, values)),) = given_to
    assert (kernel, grid, threads, device) == ((64, "float32", "float32", -1), (1, 2, 2), (8, 16), -1)
    assert shared == 4 * (64 * 68 + 32 * 68 + 64 * 40)
    values = list(values)
    assert values[:12] == [0, 0, 2 * 5 * 2 * 40, 4, 2, 2, 5, 40, 4 * 5 * 2 * 40, 4 * 40, 4 * 2 * 40, 4]
    assert values[24:36] == [0, 0, 2 * 35 * 33, 4, 2, 1, 35, 33, 4 * 35 * 33, 4 * 33, 4 * 33, 4]
    assert values[48:58] == [0, 0, 0, 4, 0, 0, 0, 0, 0, 0]
    assert values[58:70] == [0, 0, 1, 4, 1, 0] * 2
    assert values[70:] == [40**-0.5, 0.0, -1, -1, True]
    assert len(values) == len(kinds) - kinds.count("P")


def test_more_sequences_than_a_grid_holds_are_refused():
    """With what a grid holds."""
    sizes = {"dtype": "float32", "seq_q": 8, "seq_k": 8, "head_dim_qk": 64, "head_dim_v": 64, "num_kv_heads": 1}
    device = Device.pretend("h200")
    assert check(Request(**sizes, batch=MOST, num_q_heads=MOST), device) == []
    (reason,) = check(Request(**sizes, batch=MOST + 1, num_q_heads=1), device)
    assert (reason.code, reason.axis, reason.got, reason.want) == ("check", "batch", MOST + 1, f"<= {MOST}")
