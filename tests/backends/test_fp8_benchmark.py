"""`benchmarks/fp8.py`, as far as it goes without a GPU: its shapes, its operands and what it holds them against."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.fixture(scope="module")
def benchmark():
    """The script as a module, with few tokens."""
    place = Path(__file__).parents[2] / "benchmarks" / "fp8.py"
    spec = importlib.util.spec_from_file_location("fp8_benchmark", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.TOKENS = 512
    return module


@pytest.mark.parametrize(
    ("head_dim", "gqa", "heads"), [(64, 1, (32, 32)), (128, 8, (16, 2)), (256, 8, (8, 1))], ids=str
)
def test_heads_share_keys(benchmark, head_dim, gqa, heads):
    assert benchmark.shapes(head_dim, 256, gqa) == tuple((2, 256, count, head_dim) for count in heads)


def test_heads_that_share_nothing_evenly_are_an_error(benchmark):
    with pytest.raises(ValueError, match="8 heads of 256 are no multiple of --gqa 3"):
        benchmark.shapes(256, 256, 3)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_operands_stand_for_the_tensors_of_their_heads(benchmark, causal):
    """The last head's answer, on codes and on tensors: of the last key head, and near each other."""
    torch.manual_seed(0)
    cell = benchmark.Cell(256, 256, causal, {}, gqa=8, device="cpu")
    q, k, v = (x[-1, :, -1].double() for x in (cell.q, cell.k, cell.v))
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    of_operands, of_tensors = cell.right()
    assert torch.allclose(of_tensors, want)
    assert benchmark.relative(of_operands, want) < 0.08
    assert cell.operands.q_scale.shape[1] == 8 * cell.operands.k_scale.shape[1]
    assert cell.numbers() == 512 * 2048 * (1 + 2 / 8)
