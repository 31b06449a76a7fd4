"""The shipped tiles compile for the architectures they are for: spills and shared memory within what their rows say.

Nothing runs on a device. The compiler works in a process of its own, because this one may have the interpreter on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attn_backends.device import Device

pytest.importorskip("triton", reason="compiles with Triton")
pytestmark = pytest.mark.slow

MODULE = "attn_backends.backends.triton_tiled.compile_table"


def compile_table(*options: str) -> list[dict[str, Any]]:
    """One dict per kernel, as the command prints them; it exits with 1 where one of them is bad, which tests say better."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", MODULE, "--json", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    return lines


def check(lines: list[dict[str, Any]]) -> None:
    """No more spills and shared memory than the row says, and no more of that than the architecture has."""
    spilled = [line for line in lines if line["stack"] > line["may_spill"]]
    assert not spilled
    for line in lines:
        limit = Device.pretend(line["arch"]).smem_bytes
        assert limit is not None
        assert line["shared"] <= (limit if line["allowed"] is None else line["allowed"]) <= limit, line


ELSEWHERE = ("sm_80", "sm_89", "sm_100", "sm_120")


@pytest.mark.parametrize("arch", ["sm_90", *(pytest.param(arch, marks=pytest.mark.exhaustive) for arch in ELSEWHERE)])
def test_every_row_compiles_as_it_says(arch: str) -> None:
    """Each row of configs.toml with its hardest features; rows for several architectures take turns among them."""
    check(compile_table("--sample", "--arch", arch))


@pytest.mark.parametrize("arch", [ELSEWHERE[0], ELSEWHERE[-1]])
def test_every_row_of_the_forward_compiles_as_it_says(arch: str) -> None:
    """The same of one kernel, for the oldest and the newest of those architectures that nobody has run."""
    lines = compile_table("--sample", "--arch", arch, "--kernel", "forward")
    assert {line["kernel"] for line in lines} == {"forward"}
    check(lines)


def test_sm_90_multiplies_from_shared_memory_and_loads_through_descriptors() -> None:
    """16-bit rows for sm_90 become warpgroup products (HGMMA) fed by TMA (UTMALDG), or the row is not worth its name."""
    kernels = ("--kernel", "forward", "--kernel", "keys", "--kernel", "queries")
    variants = ("--variant", "plain", "--variant", "packed")
    lines = compile_table("--arch", "sm_90", "--dtype", "bfloat16", *variants, *kernels, "--instructions")
    check(lines)
    assert {(line["kernel"], *line["widths"]) for line in lines} == {
        (kernel, width, width) for kernel in ("forward", "keys", "queries") for width in (64, 128, 256)
    }
    assert all(line["HGMMA"] > 0 and line["UTMALDG"] > 0 for line in lines), lines


def test_products_on_sm_90_are_not_run_one_by_one() -> None:
    """ptxas waits for a whole group of products, of a head alone too: not for each of them, as it does where it sees a hazard."""
    kernels = ("--kernel", "forward", "--kernel", "keys", "--kernel", "queries")
    lines = compile_table("--arch", "sm_90", "--dtype", "bfloat16", "--variant", "plain", *kernels, "--instructions")
    assert all(2 * line["WARPGROUP.DEPBAR"] <= line["HGMMA"] for line in lines), lines


MOST_VARIANTS = 200


def printed_by(module: str, *arguments: str) -> Any:
    """The JSON that a module prints."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_suite_makes_triton_compile_few_kernels(tmp_path: Path) -> None:
    """All items of level `full` on an H200 together: what is not hot shares kernels, whatever its widths and features."""
    found = printed_by("tests.backends.triton_tiled_variants", str(tmp_path / "site"))
    assert set(found) == {"attention_forward", "row_terms", "key_gradients", "query_gradients", "bias_gradients"}
    assert sum(found.values()) <= MOST_VARIANTS, found


def test_the_kernels_of_a_backward_are_compiled_side_by_side() -> None:
    """All of them in threads, and none is left for its own launch to compile."""
    found = printed_by("tests.backends.triton_tiled_together")
    assert found == {"compiled": ["key_gradients", "query_gradients", "row_terms"], "left": []}


def test_amd_compiles() -> None:
    """The same source compiles for an MI300X; it was run on none."""
    lines = compile_table("--arch", "gfx942", "--variant", "causal", "--width", "64", "--dtype", "bfloat16")
    assert {line["kernel"] for line in lines} == {"forward", "rows", "keys", "queries"}
    check(lines)
