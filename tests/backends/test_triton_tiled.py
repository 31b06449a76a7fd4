"""triton_tiled says what eager says: under the interpreter on any machine, and in every dtype on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.backends import triton_tiled_cases as table  # noqa: E402

LIMITS = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(scope="session")
def interpreted():
    """What the interpreter found, in a process of its own: the choice is made when a kernel is defined."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.backends.triton_tiled_cases"],
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


@pytest.mark.slow
@pytest.mark.parametrize("name", table.CASES)
def test_interpreted(interpreted, name):
    assert_close(interpreted["cases"][name], LIMITS[torch.float32])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("name", table.CASES)
def test_on_a_gpu(name, dtype):
    assert_close(table.differences(table.CASES[name], dtype, "cuda"), LIMITS[dtype])


def tiles_in_band(seq, rows, columns, *, causal=False, window_left=-1, window_right=-1):
    """Tiles that a program must visit when it starts at its first visible key."""
    total = 0
    for first in range(0, seq, rows):
        last = min(first + rows, seq) - 1
        begin = max(first - window_left, 0) if window_left >= 0 else 0
        right = 0 if causal else window_right
        end = min(last + right + 1, seq) if right >= 0 else seq
        total += -(-(end - begin) // columns)
    return total


@pytest.mark.parametrize("seq", table.LENGTHS)
@pytest.mark.parametrize("walk", table.WALKS)
def test_only_tiles_in_the_band_are_visited(interpreted, walk, seq):
    visits, rows, columns = interpreted["walks"][f"{walk}/{seq}"]
    wanted = tiles_in_band(seq, rows, columns, **table.WALKS[walk])
    assert wanted <= visits <= wanted + -(-seq // rows)  # a cut stretch may end in one tile more


def test_visits_grow_with_the_window_and_not_with_the_square(interpreted):
    short, long = (interpreted["walks"][f"window/{seq}"][0] for seq in table.LENGTHS)
    full_short, full_long = (interpreted["walks"][f"full/{seq}"][0] for seq in table.LENGTHS)
    assert long <= 2.2 * short
    assert full_long == 4 * full_short


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_memory_of_a_step_grows_linearly():
    def peak(seq):
        q, k, v = (
            torch.randn(1, seq, 2, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
        )
        import attn_backends

        torch.cuda.reset_peak_memory_stats()
        attn_backends.attention(q, k, v, causal=True, backend="triton_tiled").sum().backward()
        return torch.cuda.max_memory_allocated()

    peak(1024)
    before = torch.cuda.memory_allocated()
    short, long = peak(8192) - before, peak(32768) - before
    assert long < 5 * short
