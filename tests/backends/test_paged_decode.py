"""paged_decode says what eager says: under the interpreter on any machine, and in every dtype on a GPU."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
tl = pytest.importorskip("triton.language")

from attn_backends import Device, select  # noqa: E402
from attn_backends.backends.paged_decode import launch as launching  # noqa: E402
from attn_backends.backends.paged_decode.limits import check  # noqa: E402
from attn_backends.backends.paged_decode.operands import operands_of  # noqa: E402
from tests.backends import paged_decode_cases as table  # noqa: E402

LIMITS = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
H200 = Device.pretend("h200")
REFUSED = [  # by `check`: no tiles fit
    (name, dtype)
    for name, case in table.CASES.items()
    for dtype in LIMITS
    if check(table.request_of(case, dtype), H200)
]
SERVED = [(name, dtype) for name in table.CASES for dtype in LIMITS if (name, dtype) not in REFUSED]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def interpret(*options):
    """What the interpreter found, in a process of its own: the choice is made when a kernel is defined."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.backends.paged_decode_cases", *options],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def in_turn():
    return interpret()


@pytest.fixture(scope="session")
def in_all():
    return interpret("--all")


@pytest.fixture(scope="session")
def spoilt():
    return interpret("--nan")


def assert_close(found, limit):
    assert found["infinite"] == 0
    wrong = {name: value for name, value in found.items() if not value <= limit}
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", table.CASES)
def test_interpreted(in_turn, name):
    """Every case, in one of the dtypes by turns."""
    (dtype,) = table.TURNS[name]
    assert_close(in_turn[name][str(dtype)], LIMITS[dtype])


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", table.INTERPRETED, ids=str)
@pytest.mark.parametrize("name", table.CASES)
def test_interpreted_in_all(in_all, name, dtype):
    assert_close(in_all[name][str(dtype)], LIMITS[dtype])


@pytest.mark.parametrize("name", table.NAN)
def test_nan_at_a_key_that_rows_see_is_nan_in_their_results(spoilt, name):
    """A split that saw it is not taken for one that saw nothing, which would leave a plausible result without its keys."""
    assert spoilt[name] == 0


def test_a_descale_that_is_nan_spoils_its_head_alone(spoilt):
    """Rows without keys stay 0 and -inf: what is hidden never meets a scale."""
    assert spoilt["descale"] == 0


def test_a_row_without_keys_is_0_whatever_its_query_is(spoilt):
    """Infinite, under a scale of 0."""
    assert spoilt["row"] == 0


@pytest.mark.parametrize("scale", table.HUGE)
def test_a_tiny_scale_is_no_larger_one(spoilt, scale):
    """Products of 10^36 times it are the scores."""
    assert spoilt["huge"][str(scale)] <= LIMITS[torch.float32]


@pytest.mark.gpu
@needs_gpu
def test_a_descale_that_is_nan_on_a_gpu():
    assert table.numbers_in_spite_of_a_nan_descale("cuda") == 0


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", table.NAN)
def test_nan_is_nan_on_a_gpu(name):
    assert table.numbers_in_spite_of_nan(name, torch.bfloat16, "cuda") == 0


@pytest.mark.parametrize(("name", "dtype"), REFUSED)
def test_what_has_no_tiles_is_not_selected(name, dtype):
    """Whether a manifest's box or `check` says so: the caller is told, and no kernel is asked."""
    request = table.request_of(table.CASES[name], dtype)
    mine = next(one for one in select(request, device=H200).candidates if one.name == "paged_decode")
    assert mine.reasons


def test_float32_latents_have_no_tiles():
    """And they alone of this table."""
    assert {dtype for _, dtype in REFUSED} == {torch.float32}
    assert {name for name, _ in REFUSED} == {name for name in table.CASES if "latent" in name}


@pytest.mark.parametrize(("name", "dtype"), SERVED)
def test_what_is_served_has_tiles(name, dtype, monkeypatch):
    """On the same device the launch finds those that `check` found."""
    monkeypatch.setattr(launching, "architecture", lambda _device: 90)
    call, _ = table.calls(table.CASES[name], dtype, "cpu")
    assert launching.chosen(call, operands_of(call).sizes).shared <= H200.smem_bytes


@pytest.mark.parametrize(("behind", "wide"), [(0, False), (1, True)], ids=["the last that fits", "one page more"])
def test_offsets_are_multiplied_in_64_bits_where_32_do_not_hold_them(behind, wide):
    """Of the last cell of the last page."""
    call, _ = table.calls(table.CASES["decode"], torch.float32, "cpu")
    operands = operands_of(call)
    page, cell, *_ = operands.strides[1]
    pages = (2**31 - 1 - (operands.sizes.page_size - 1) * cell) // page + 1 + behind
    larger = dataclasses.replace(operands, sizes=operands.sizes._replace(num_pages=pages))
    assert launching._options(call, larger, launching.chosen(call, larger.sizes))["INDEX"] is (
        tl.int64 if wide else tl.int32
    )


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("name", "dtype"), SERVED)
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
