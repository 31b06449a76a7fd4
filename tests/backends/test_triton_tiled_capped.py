"""A softcap's bound takes the place of each row's maximum, and no row is the worse for it, wherever its scores lie."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from attn_backends.backends.triton_tiled.compile_calls import VARIANTS, call_of  # noqa: E402
from attn_backends.backends.triton_tiled.launch import bounded  # noqa: E402
from attn_backends.backends.triton_tiled.operands import operands_of  # noqa: E402
from attn_backends.backends.triton_tiled.sources import sources_of  # noqa: E402
from tests.backends import triton_tiled_capped as table  # noqa: E402

EXACT = {"out": 2e-5, "lse": 5e-5, "infinite": 0.0, "poison": 0.0}
ROUNDED = {
    "out": 5e-2,
    "lse": 5e-2,
    "infinite": 0.0,
    "poison": 0.0,
}  # bfloat16, and a tanh of 11 bits times a cap of 50


@pytest.fixture(scope="session")
def interpreted() -> Any:
    """What the interpreter found, in a process of its own: the choice is made when a kernel is defined."""
    command = [sys.executable, "-m", "tests.backends.triton_tiled_capped"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", table.CASES)
def test_rows_are_right_wherever_their_scores_lie(interpreted: Any, name: str) -> None:
    """Output, LSE, empty rows and hidden NaN against float64, row by row."""
    assert not {what: found for what, found in interpreted[name].items() if not found <= EXACT[what]}


@pytest.mark.parametrize("name", table.CASES)
def test_a_case_lies_on_one_device(name: str) -> None:
    """Every tensor of a call goes where q goes, those inside a block mask too: a kernel reads no other device."""
    *tensors, settings = table.drawn(table.CASES[name], torch.float32, "meta")
    if (blocks := settings.get("block_mask")) is not None:
        tensors.append(blocks.blocks)
    tensors += [value for value in settings.values() if isinstance(value, torch.Tensor)]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", table.CASES)
def test_rows_are_right_on_a_gpu(name: str) -> None:
    """The same in bfloat16, which flushes what is too small and rounds weights before the second product."""
    found = table.errors(table.CASES[name], torch.bfloat16, "cuda")
    assert not {what: error for what, error in found.items() if not error <= ROUNDED[what]}


@pytest.mark.parametrize("name", table.CAPS)
def test_nan_at_a_key_that_rows_see_is_nan_in_their_results(interpreted: Any, name: str) -> None:
    """And not a row of zeros: what went wrong before must be seen."""
    assert interpreted["nan"][name] == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", table.CAPS)
def test_nan_is_nan_on_a_gpu(name: str) -> None:
    """Where some weights are cubics, whichever of eight neighbours the key is."""
    assert table.numbers_in_spite_of_nan(table.CAPS[name], torch.bfloat16, "cuda") == 0


BOUNDED = {  # what is asked: (the fields of a call, its dtype) -> whether the cap alone bounds its weights well enough
    "softcap": ({"softcap": 30.0}, torch.bfloat16, True),
    "the largest cap": ({"softcap": 50.0}, torch.bfloat16, True),
    "a larger cap": ({"softcap": 50.1}, torch.bfloat16, False),
    "a tiny cap": ({"softcap": 1e-4}, torch.bfloat16, True),
    "no softcap": ({}, torch.bfloat16, False),
    "a cap above float32": ({"softcap": 1e39}, torch.bfloat16, False),
    "float16": ({"softcap": 30.0}, torch.float16, False),
    "float mask": ({"softcap": 30.0, "mask": "float"}, torch.bfloat16, False),
    "alibi": ({"softcap": 30.0, "alibi": True}, torch.bfloat16, False),
    "bool mask": ({"softcap": 30.0, "mask": "bool"}, torch.bfloat16, True),
    "sinks": ({"softcap": 30.0, "sinks": True}, torch.bfloat16, True),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_where_the_cap_is_the_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where nothing else moves the scores, and the weights have the exponents for it."""
    fields, dtype, wanted = BOUNDED[name]
    monkeypatch.setitem(VARIANTS, name, {"tokens": 128, **fields})
    call = call_of(name, dtype, 64, 64)
    operands = operands_of(call)
    assert bounded(call, operands, sources_of("forward", call, operands).config) is wanted
