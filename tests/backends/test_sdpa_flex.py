"""The flex adapter's arithmetic on a CPU, where flex_attention runs uncompiled: bands, score_mod, LSE. It has no backward there.

What the compiled kernel makes of it is for the GPU tests; these prove what it is asked to compute.
"""

from __future__ import annotations

import pytest
import torch

from attn_backends.backends.flex import band_mask, compiled
from attn_backends.backends.torch_sdpa.band import Band
from tests.backends.sdpa_calls import Case, answer, check, given_for
from tests.backends.sdpa_cases import CAUSAL, SCALES, SCORES, SHAPES, WINDOWS

CASES = [
    case.but(lse=True)
    for case in (*SHAPES[:8], *SHAPES[10:12], *SCALES, *CAUSAL, *WINDOWS, *SCORES)
    if case.head_dim <= 32
]

COMPILED = compiled._compiled  # the real one: the fixture below takes its place


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    """flex_attention without Inductor: slow and dense, the same formula."""
    monkeypatch.setattr(compiled, "_KERNELS", {})
    monkeypatch.setattr(compiled, "_compiled", lambda _features: compiled.attend)


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_asks_for_the_formula(case):
    """Out and LSE are the formula's."""
    check("flex", case, torch.float32, "cpu")


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*")
def test_hidden_keys_are_cut_off():
    """Keys behind a top-left diagonal are not in the problem at all: NaN there changes no bit."""
    case = Case("poison", causal=True, alignment="top_left", seq_q=5, seq_k=12)
    given = given_for(case, torch.float32)
    clean, poisoned = (answer("flex", case, g, "cpu") for g in (given, given.poisoned(float("nan"))))
    assert all(torch.equal(a, b) for a, b in zip(clean.parts().values(), poisoned.parts().values(), strict=True))


@pytest.mark.parametrize("left", [None, 0, 5, 200])
@pytest.mark.parametrize("right", [None, 0, 3])
@pytest.mark.parametrize(("rows", "keys", "offset"), [(1, 1, 0), (130, 300, 170), (300, 300, 0), (257, 129, -40)])
def test_block_mask_is_the_band(rows, keys, offset, left, right):
    """A block is listed if and only if some row of it sees some key of it, and full if and only if all see all."""
    mask = band_mask.block_mask_of(rows, keys, offset, left, right, "cpu")
    ahead = torch.arange(keys)[None, :] - torch.arange(rows)[:, None] - offset
    visible = torch.ones(rows, keys, dtype=torch.bool)
    visible &= ahead <= (right if right is not None else keys + rows + 200)
    visible &= ahead >= -(left if left is not None else keys + rows + 200)
    for block_row in range(-(-rows // 128)):
        for block_key in range(-(-keys // 128)):
            block = visible[block_row * 128 : block_row * 128 + 128, block_key * 128 : block_key * 128 + 128]
            full = block_key in _listed(mask.full_kv_num_blocks, mask.full_kv_indices, block_row)
            partial = block_key in _listed(mask.kv_num_blocks, mask.kv_indices, block_row)
            assert full == bool(block.all())
            assert (full or partial) == bool(block.any())


def _listed(counts, indices, row):
    return indices[0, 0, row, : int(counts[0, 0, row])].tolist()


def test_a_spent_recompilation_budget_is_renewed(monkeypatch):
    """When Dynamo has recompiled a feature set too often, it gets fresh code instead of an error."""
    made = []

    def make(features):
        made.append(features)

        def kernel(*_arguments):
            if len(made) == 1:
                raise compiled.FailOnRecompileLimitHit("spent")
            return "out", "lse"

        return kernel

    monkeypatch.setattr(compiled, "_compiled", make)
    assert compiled.run_compiled(("features",)) == ("out", "lse")
    assert made == [("features",)] * 2


def test_bands_know_both_diagonals():
    """A square slice hangs on both diagonals that kernels know, another one on the one its offset says."""
    band = {"first_row": 0, "end_row": 4, "first_key": 0, "left": None, "right": 0}
    assert Band(**band, end_key=4, offset=0).diagonals == ("top_left", "bottom_right")
    assert Band(**band, end_key=9, offset=5).diagonals == ("bottom_right",)
    assert Band(**band, end_key=9, offset=2).diagonals == ()


def test_no_output_is_the_next_calls(monkeypatch):
    """Inductor's CUDA graphs, which a process may turn on for all that it compiles, write each call's output over the last one's."""
    given = {}
    monkeypatch.setattr(torch, "compile", lambda _function, **options: given.update(options))
    COMPILED(("feature",))
    assert given["options"]["triton.cudagraphs"] is False
