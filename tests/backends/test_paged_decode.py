"""paged_decode says what eager says: under the interpreter on any machine, and in every dtype on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.backends import paged_decode_cases as table  # noqa: E402

LIMITS = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="session")
def interpreted():
    """What the interpreter found, in a process of its own: the choice is made when a kernel is defined."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.backends.paged_decode_cases"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_close(found, limit):
    assert found["infinite"] == 0
    wrong = {name: value for name, value in found.items() if not value <= limit}
    assert not wrong


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", table.CASES)
def test_interpreted(interpreted, name, dtype):
    assert_close(interpreted[str(dtype)][name], LIMITS[dtype])


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("name", table.CASES)
def test_on_a_gpu(name, dtype):
    assert_close(table.differences(table.CASES[name], dtype, "cuda"), LIMITS[dtype])


@pytest.mark.gpu
@needs_gpu
def test_a_graph_captured_at_few_tokens_is_right_at_many():
    """Captured at 128 tokens, replayed at 100,000 and at other lengths of the same table."""
    call = table.long_call(pages=12_800, page_size=16)
    table.set_lengths(call, [128, 1])
    table.run_paged(call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        table.run_paged(call)
    for lengths in ([100_000, 17], [3, 0], [128, 4096]):
        table.set_lengths(call, lengths)
        call.out.fill_(torch.nan)
        graph.replay()
        assert table.difference_from_eager(call) <= LIMITS[torch.bfloat16]


@pytest.mark.gpu
@needs_gpu
def test_offsets_beyond_32_bits():
    """The last page of a pool of more than 2^31 elements."""
    call = table.long_call(pages=70_000, page_size=16, heads=(16, 16, 128, 128), only_last=True)
    table.run_paged(call)
    assert call.k.numel() > 2**31
    assert table.difference_from_eager(call) <= LIMITS[torch.bfloat16]
