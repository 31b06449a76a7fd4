"""numba_mma compiles for the architectures it declares: nothing spills, and tensor cores, ldmatrix and cp.async do the work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.backends import numba_mma_cases as table

pytest.importorskip("triton", reason="has ptxas")
pytestmark = [
    pytest.mark.skipif(find_spec("numba_cuda") is None, reason="compiles with numba-cuda"),
    pytest.mark.slow,
]
FEATURES = ("plain", "causal", "window on both sides", "softcap", "packed, rows of nobody", "rows of a projection")

STEPS = {64: 4, 128: 8}  # of sixteen columns


def said(module, *options):
    """In a process of its own: numba decides when it is imported whether it simulates."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    command = [sys.executable, "-m", f"tests.backends.{module}", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(
    scope="module", params=[(), pytest.param(("--all",), marks=pytest.mark.exhaustive)], ids=["part", "all"]
)
def kernels(request):
    return said("numba_mma_compiled", *request.param)


def test_nothing_spills(kernels):
    """No local memory in the PTX, none in the machine code, and no stack."""
    assert [one for one in kernels if one["local"] or one["spills"] or one["stack"]] == []
    assert [one for one in kernels if one["sass"]["LDL"] or one["sass"]["STL"]] == []


def test_products_are_made_by_tensor_cores(kernels):
    """As many as a tile of 16 x 64 scores and its output take, each once in the PTX and once in the machine code."""
    for one in kernels:
        steps = STEPS[int(one["kernel"].split()[0])]
        assert (one["mma"], one["sass"]["HMMA"]) == (16 * steps, 16 * steps), one


def test_operands_come_by_ldmatrix_and_tiles_by_cp_async(kernels):
    """Q and K as they lie, V transposed; Q, K and V twice: the first tile, and the next one in the loop."""
    for one in kernels:
        steps = STEPS[int(one["kernel"].split()[0])]
        assert (one["ldmatrix"], one["transposed"]) == (steps + 4 * steps, 4 * steps), one
        assert one["sass"]["LDSM"] == 9 * steps, one
        assert one["cp.async"] == one["sass"]["LDGSTS"] == 5 * steps, one


def test_parameters_are_what_a_launch_packs(kernels):
    """Addresses and sizes in 64 bits, then two float32."""
    from attn_backends.backends.numba_mma.launch import KINDS

    for one in kernels:
        assert one["parameters"] == [{"P": "u64", "q": "u64", "f": "f32"}[kind] for kind in KINDS], one
        assert one["named"]


def test_registers_leave_room_for_the_blocks_that_are_wanted(kernels):
    """65536 registers, handed out in eights to each thread of a block."""
    from attn_backends.backends.numba_mma.config import BLOCKS

    for one in kernels:
        rounded = -(-one["registers"] // 8) * 8
        assert rounded * 128 * BLOCKS[int(one["kernel"].split()[0])] <= 65536, one


@pytest.mark.parametrize(
    "names", [FEATURES, pytest.param((), marks=pytest.mark.exhaustive)], ids=["features", "every case"]
)
def test_the_ptx_computes_attention(names):
    """Run instruction by instruction on a machine of numpy: what numba, NVVM and the inline PTX have come to."""
    (found,) = said("ptx_on_numpy", *names)
    assert len(found) == len(names or table.CASES)
    wrong = {name: one for name, one in found.items() if one["out"] > table.LIMITS[one["half"]][0]}
    assert (wrong, {name: one for name, one in found.items() if one["lse"] > table.LIMITS[one["half"]][1]}) == ({}, {})
