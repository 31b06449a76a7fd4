"""paged_decode compiles for sm_90 as its tiles say, and launches without reading a length.

Nothing runs on a device. The compiler works in a process of its own, because this one may have the interpreter on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from attn_backends.backends.paged_decode.configs import configs

pytest.importorskip("triton", reason="compiles with Triton")
from tests.backends.paged_decode_compiling import PAIRED

pytestmark = pytest.mark.slow

MOST_SPILLED = 512  # bytes of stack per thread: new tokens over 8 bits by token, under every feature at once


@pytest.fixture(
    scope="module", params=[(), pytest.param(("--all",), marks=pytest.mark.exhaustive)], ids=["part", "all"]
)
def kernels(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """The main kernel of calls of the table, from tensors without contents: of one for every row, or of all."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.backends.paged_decode_compiling", *request.param]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["call"]: line for line in lines if line["kernel"] == "attend_split"}


def test_tiles_fit_as_their_rows_say(kernels: dict[str, dict[str, Any]]) -> None:
    """No more shared memory than the row says, hardly any spill."""
    wrong = [line for line in kernels.values() if line["shared"] > line["allowed"] or line["stack"] > MOST_SPILLED]
    assert kernels
    assert not wrong


def test_16_bit_and_8_bit_tiles_are_fetched_ahead(kernels: dict[str, dict[str, Any]]) -> None:
    """The loads of K and of V of every 16-bit product are asynchronous: triton 3.7 left those of V where they were once.

    Or a tile waits in registers, and nothing is asynchronous.
    """
    pipelined = {name: line for name, line in kernels.items() if "float32" not in name and not line["in_registers"]}
    assert all(line["async_copies"] > 0 for line in pipelined.values())
    assert not {name for name, line in pipelined.items() if line["waited_for"]}


def test_every_row_is_compiled(kernels: dict[str, dict[str, Any]]) -> None:
    """As one call or another."""
    assert {line["row"] for line in kernels.values()} == {
        place for place, row in enumerate(configs()) if row.arch <= 90 <= row.last_arch
    }


@pytest.mark.parametrize("call", PAIRED)
def test_e4m3_becomes_float16_two_at_a_time_and_no_byte_is_read_alone(
    kernels: dict[str, dict[str, Any]], call: str
) -> None:
    """V's bytes come in pairs through the hardware's transposition; one by one they cost twice the instructions."""
    assert kernels[call]["conversions"] > 0
    assert kernels[call]["byte_loads"] < 4  # masks of rows, which change their layout once; a tile of V has dozens
