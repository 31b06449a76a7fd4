"""The shipped pipelines compile for sm_90 with the installed Triton: no spills, Hopper's own instructions, memory as said.

Nothing runs on a device. What a GPU finds is in test_hopper.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from attn_backends.backends.hopper.configs import configs
from attn_backends.device import Device

pytest.importorskip("triton", reason="compiles with Triton")
pytestmark = pytest.mark.slow
KINDS = {"by turns": 1, "all": 4}  # of a pipeline: two dtypes, whole and ragged tiles

Kernels = list[dict[str, Any]]


@pytest.fixture(scope="module", params=["by turns", pytest.param("all", marks=pytest.mark.exhaustive)])
def kinds(request: pytest.FixtureRequest) -> str:
    """Of each pipeline."""
    return str(request.param)


@pytest.fixture(scope="module")
def compiled(kinds: str) -> Kernels:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.backends.hopper_compiled", *(["--all"] if kinds == "all" else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def kernels(compiled: Kernels) -> Kernels:
    """Those of the shipped pipelines."""
    return [kernel for kernel in compiled if kernel["shipped"]]


def test_every_pipeline_is_compiled(kernels: Kernels, kinds: str) -> None:
    """Each row; among them both dtypes, with whole and with ragged tiles."""
    assert len(kernels) == KINDS[kinds] * len(configs())
    assert len(configs()) >= KINDS["all"]


def test_nothing_spills(kernels: Kernels) -> None:
    """A register that is spilled in the loop costs more than any of its tricks gains."""
    assert [kernel for kernel in kernels if kernel["stack"] or kernel["counts"]["LDL"] or kernel["counts"]["STL"]] == []


def test_they_use_what_hopper_has(kernels: Kernels) -> None:
    """Products of a warpgroup, copies by TMA both ways, and registers that change hands."""
    wanted = ("HGMMA", "UTMALDG", "UTMASTG", "USETMAXREG")
    assert [kernel for kernel in kernels if not all(kernel["counts"][name] for name in wanted)] == []


def test_shared_memory_is_what_the_budget_says(kernels: Kernels) -> None:
    """`check` refuses by the budget, so the budget is an upper bound, and a close one; and a Hopper GPU has as much."""
    limit = Device.pretend("h200").smem_bytes
    assert limit is not None
    for kernel in kernels:
        assert kernel["budget"] - 1024 <= kernel["shared"] <= kernel["budget"] <= limit, kernel


def test_the_budget_fits_what_does_not_spill(compiled: Kernels) -> None:
    """Its count of registers is a model; here it is held against the assembler's, on both sides of the bound."""
    assert {kernel["fits"] for kernel in compiled} == {True, False}
    assert [kernel for kernel in compiled if kernel["fits"] != (kernel["stack"] == 0)] == []
