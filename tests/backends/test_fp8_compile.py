"""`fp8`'s kernels compile for every architecture they are declared for: no spills in a loop, shared memory within limits."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="nothing is compiled there")

SHARED = {"sm_89": 101376, "sm_90": 232448, "sm_100": 232448, "sm_120": 101376}  # bytes of a block at most
# Bytes per thread of the quantise pass, where there are any; tiles.toml has the same.
STACK = {("sm_89", 256): 48, ("sm_90", 64): 8, ("sm_90", 256): 72, ("sm_100", 128): 16, ("sm_120", 256): 64}


@pytest.mark.parametrize(
    ("arch", "width", "band"),
    [
        ("sm_89", 64, (-1, 0)), ("sm_89", 256, (-1, -1)), ("sm_90", 64, (100, 0)), ("sm_90", 128, (-1, 0)),
        ("sm_90", 256, (-1, 0)), ("sm_100", 128, (-1, 0)), ("sm_120", 128, (-1, 0)),
    ],
    ids=str,
)  # fmt: skip
def test_the_portable_forward_compiles(arch, width, band):
    """Both products are of e4m3, weights are cast by the instruction that saturates, nothing spills."""
    from tests.backends import fp8_compiled

    kernel = fp8_compiled.forward(arch, width, band)
    assert kernel.stack == 0
    assert kernel.shared <= SHARED[arch]
    assert fp8_compiled.products(kernel) >= 2
    assert "cvt.rn.satfinite.e4m3x2.f32" in kernel.assembly


@pytest.mark.parametrize(
    ("arch", "width"), [("sm_89", 128), ("sm_90", 64), ("sm_90", 128), ("sm_90", 256), ("sm_100", 64)], ids=str
)
def test_the_quantise_pass_compiles(arch, width):
    """Codes are written 16 bytes at a time; nothing spills but what tiles.toml says; from sm_90 on the next kernel may come early."""
    from tests.backends import fp8_compiled

    kernel = fp8_compiled.quantise(arch, width)
    assert kernel.stack <= STACK.get((arch, width), 0)
    assert kernel.shared <= SHARED[arch]
    assert re.search(r"st\.global\S*\.v4\.b32", kernel.assembly)
    assert ("griddepcontrol.launch_dependents" in kernel.assembly) == (int(arch.removeprefix("sm_")) >= 90)
    assert "cvt.rn.satfinite.e4m3x2.f32" in kernel.assembly


@pytest.mark.slow
@pytest.mark.parametrize("band", [(-1, -1), (-1, 0), (100, 20)], ids=str)
@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("arch", SHARED)
def test_every_portable_forward_compiles(arch, width, band):
    """For each architecture, width and mask: no warning of the assembler, nothing spills, memory suffices."""
    from tests.backends import fp8_assembled, fp8_compiled

    for tokens in (4096, 4000):
        kernel = fp8_compiled.forward(arch, width, band, tokens)
        assert kernel.stack == 0
        assert kernel.shared <= SHARED[arch]
        assert not fp8_assembled.warnings(kernel.assembly, fp8_compiled.ptxas_name(arch))


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [4096, 4000])
@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("arch", SHARED)
def test_every_quantise_pass_compiles(arch, width, tokens):
    """For each architecture and width, whole and ragged: no warning of the assembler, stack as tiles.toml says."""
    from tests.backends import fp8_assembled, fp8_compiled

    kernel = fp8_compiled.quantise(arch, width, tokens)
    assert kernel.stack <= STACK.get((arch, width), 0)
    assert kernel.shared <= SHARED[arch]
    assert not fp8_assembled.warnings(kernel.assembly, fp8_compiled.ptxas_name(arch))


@pytest.fixture(scope="module", params=["by turns", pytest.param("all", marks=pytest.mark.exhaustive)])
def pipelines(request):
    """The shipped pipelines for Hopper, compiled."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [
        sys.executable,
        "-m",
        "tests.backends.fp8_hopper_compiled",
        *(["--all"] if request.param == "all" else []),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_the_pipelines_compile(pipelines):
    """Both products on the fp8 units, copies by TMA, registers that change hands; codes are not taken apart in a loop."""
    assert len(pipelines) >= 6
    for kernel in pipelines:
        counts = kernel["counts"]
        assert counts["QGMMA"] >= 16, kernel
        assert not counts["HGMMA"], kernel
        assert all(counts[name] for name in ("UTMALDG", "UTMASTG", "USETMAXREG")), kernel
        assert counts["PRMT"] <= 16, kernel  # 98 a step where they are
        assert kernel["shared"] <= SHARED["sm_90"], kernel
        assert kernel["stack"] <= 72, kernel  # around the loops, docs/kernels/fp8.md
        assert not kernel["spills_in_loops"], kernel
        assert counts["ACQBULK"] == 1, kernel  # waits for the kernel ahead before it touches a tensor
        assert not kernel["warnings"], kernel  # C7513: products one after the other
