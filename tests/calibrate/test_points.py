"""Where shapes come from: the grid, a model's config, a decision log; and that a cell asks for what it stands for."""

from __future__ import annotations

import pytest
import torch

from attn_backends import Device, Request, register, select, unregister
from attn_backends.bench.cell import Cell
from attn_backends.bench.contender import Contender, contender
from attn_backends.bench.inputs import make_inputs
from attn_backends.bench.machinery import EVERYTHING
from attn_backends.bench.results import WRONG
from attn_backends.calibrate.cells import NoCellError, cell_from_json, cell_of, cell_to_json, sizes_of
from attn_backends.calibrate.grid import grid_cells, rows_of
from attn_backends.calibrate.points import joined, of_config, of_grid, of_records, of_requests
from attn_backends.planning import load_config
from attn_backends.selector.measured.bucket import bucket_of
from tests.calibrate.fakes import right
from tests.selector.scenes import request


@pytest.mark.parametrize("cell", list(grid_cells("cpu")), ids=lambda cell: cell.id)
def test_the_tensors_of_a_cell_make_its_bucket(cell):
    """What is timed is what the time is stored under."""
    inputs = make_inputs(cell, 0, torch.device("cpu"))
    made = Request.from_tensors(inputs.q, inputs.k, inputs.v, **inputs.arguments)
    assert bucket_of(made) == bucket_of(cell.request())


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_the_grid_has_every_phase_and_no_bucket_twice(kind):
    """Cells survive their way through JSON."""
    cells = list(grid_cells(kind))
    buckets = [point.bucket for point in of_grid(kind).points]
    assert len(set(buckets)) == len(buckets)
    assert set(buckets) == {bucket_of(cell.request()) for cell in cells}
    assert {"prefill", "decode"} <= {cell.phase for cell in cells}
    assert [cell_from_json(cell_to_json(cell)) for cell in cells] == cells


def test_the_sizes_of_a_cell_are_of_its_bucket():
    """Their geometric mean is stored for it: none lies outside; calls of many rows are timed at two sizes, of few at three."""
    counts = set()
    for cell in grid_cells("cuda"):
        sizes = sizes_of(cell)
        assert {bucket_of(one.request()) for one in sizes} == {bucket_of(cell.request())}
        counts.add((len(sizes), rows_of(cell) > 1 << 16))
    assert counts == {(3, False), (2, True)}


@pytest.mark.parametrize("tile", [64, 80, 128, 176, 192])
def test_a_large_bucket_is_timed_where_no_tile_is_whole(tile):
    """The top of a bucket is a power of two, at which kernels rank otherwise than at most lengths."""
    large = [cell for cell in grid_cells("cuda") if rows_of(cell) > 1 << 16 and cell.phase == "prefill"]
    lengths = {new for cell in large for size in sizes_of(cell) for _, new, _ in size.sequences}
    assert len(lengths) >= 12
    assert not [length for length in lengths if length % tile == 0]


def test_a_model_implies_its_phases():
    """Prefill, append, decode and training of every kind of layer, in its own heads and widths."""
    points = of_config(load_config("gemma-2-9b-it")).points
    kinds = {point.bucket.kind for point in points}
    assert {point.cell.phase for point in points} == {"prefill", "append", "decode"}
    assert {point.cell.head_dim for point in points} == {256}
    assert any("window_left" in kind for kind in kinds)
    assert any("window_left" not in kind for kind in kinds)
    assert all("softcap" in kind for kind in kinds)
    assert any(point.cell.passes == "backward" for point in points)


def test_what_cannot_be_drawn_is_named():
    """Sinks have no tensor here."""
    made = of_config(load_config("gpt-oss-20b"))
    assert made.points == ()
    assert "sinks=True" in made.left_out
    with pytest.raises(NoCellError, match="alibi=True"):
        cell_of(request(alibi=True), "x")


def test_a_log_implies_its_buckets():
    """One point per bucket, at the top of it, whatever lengths were asked."""
    records = [
        select(request(seq_q=length, seq_k=length), device=Device.pretend("h200")).to_json()
        for length in (300, 400, 512, 513)
    ]
    made = of_records([*records, {"request": {"dtype": "bfloat16"}}])
    assert sorted(point.cell.x for point in made.points) == [512, 1024]
    assert made.left_out == {"requests of another version": 1}


def test_a_mixed_batch_is_drawn_as_one_chunk_among_decodes():
    """Lengths and batch at the top of its bucket; its tensors make a request of that bucket."""
    asked = request(
        layout="thd", varlen=True, phase="mixed", page_size=16, kv_layout="NHD", batch=3, seq_q=9, seq_k=30, total_q=11,
        num_pages=6, causal=True,
    )  # fmt: skip
    (point,) = of_requests([asked]).points
    assert point.cell.sequences == ((1, 16, 32), (3, 1, 32))
    inputs = make_inputs(point.cell, 0, torch.device("cpu"))
    made = Request.from_tensors(inputs.q, inputs.k, inputs.v, **inputs.arguments)
    assert bucket_of(made) == bucket_of(asked) == point.bucket


@pytest.mark.parametrize(("seq_q", "seq_k"), [(65, 127), (127, 65), (100, 100), (1, 64), (64, 65)])
def test_the_top_of_a_bucket_is_in_it(seq_q, seq_k):
    """Lengths of one power of two that differ stay different: as many keys as queries are another kind of call."""
    asked = request(seq_q=seq_q, seq_k=seq_k, batch=3)
    (point,) = of_requests([asked]).points
    assert bucket_of(point.cell.request()) == point.bucket == bucket_of(asked)


def test_a_run_may_be_cut_anywhere():
    """The shortest and the longest come before what lies between."""
    lengths = [2**power for power in range(4, 13)]
    points = of_requests(request(seq_q=length, seq_k=length) for length in lengths).points
    assert [point.cell.x for point in points[:3]] == [16, 4096, 256]
    assert sorted(point.cell.x for point in points) == lengths


def test_two_sources_share_buckets():
    """What both ask for is timed once."""
    one = of_requests([request()])
    assert len(joined([one, one]).points) == 1


@pytest.mark.parametrize("passes", ["forward", "backward"])
@pytest.mark.parametrize("changed", [{"window_left": 7}, {"softcap": 0.5}], ids=str)
def test_a_window_and_a_softcap_are_drawn_and_checked(passes, changed):
    """A backend that knows them is ready to be timed; one that never asks is wrong."""
    cell = Cell(
        id="w", panel="p", x=48, phase="prefill", passes=passes, dtype="float32", sequences=((2, 48, 48),),
        num_q_heads=4, num_kv_heads=2, head_dim=16, causal=True, **changed,
    )  # fmt: skip
    inputs = make_inputs(cell, 0, torch.device("cpu"))
    assert isinstance(contender("eager", cell, inputs), Contender)
    if passes == "forward":
        box = {**EVERYTHING, "window": "any", "softcap": "any"}
        register({"name": "careless", "capability": [box]}, right)
        try:
            assert contender("careless", cell, inputs)["status"] == WRONG
        finally:
            unregister("careless")
