"""The suites as data: what they hold, and how they are named and filtered."""

from __future__ import annotations

import pytest

from attn_backends.bench.suites import UnknownSuiteError, chosen, read_suite, suite_names
from attn_backends.selector.cost.extent import extent_of
from attn_backends.selector.cost.traffic import stored_kv_bytes


@pytest.mark.parametrize("size", ["full", "small"])
@pytest.mark.parametrize("name", suite_names())
def test_every_cell_is_a_legal_request_of_its_own(name, size):
    """Ids are unique, and every cell makes a request with the phase and passes that it says."""
    suite = read_suite(name, size)
    assert len({cell.id for cell in suite.cells}) == len(suite.cells)
    for cell in suite.cells:
        request = cell.request()
        assert request.phase == cell.phase
        assert request.needs_backward == (cell.passes == "backward")
        assert extent_of(request, cell.sequences).visible > 0


def test_prefill_is_16k_tokens_of_2048_wide_heads():
    """Three widths, six lengths, both masks; and eight query heads to a KV head besides."""
    cells = read_suite("prefill").cells
    assert len(cells) == 3 * 6 * 2 + 9
    for cell in cells:
        assert sum(count * new for count, new, _ in cell.sequences) == 16384
        assert cell.num_q_heads * cell.head_dim == 2048
    assert {cell.num_q_heads // cell.num_kv_heads for cell in cells} == {1, 8}


def test_decode_has_the_six_shapes_in_four_formats():
    """K and V of 64 sequences of 8k tokens are 2 GiB in bfloat16, half in fp8, three quarters where only V is."""
    cells = {cell.id: cell for cell in read_suite("decode").cells}
    assert len(cells) == 24
    gib = 64 * 8192 * 8 * 128 * 2 * 2
    for store, share in {"dense": 1.0, "fp8-kv": 0.5, "int8-kv": 0.5, "fp8-v": 0.75}.items():
        cell = cells[f"b64 c8192 h32/8 d128 {store}"]
        assert stored_kv_bytes(cell.request(), extent_of(cell.request(), cell.sequences).keys) == share * gib


def test_a_mixed_batch_is_one_chunk_and_63_decodes():
    """Queries are packed, keys paged, and the lengths are those of each sequence."""
    cell = read_suite("mixed").cells[0]
    assert cell.lengths == [(512, 512)] + [(1, 4096)] * 63
    request = cell.request()
    assert (request.layout, request.total_q, request.seq_q, request.seq_k) == ("thd", 575, 512, 4096)
    assert request.num_pages == (512 + 63 * 4096) // 16


@pytest.mark.parametrize(
    ("pattern", "count"), [("d128 causal", 6 + 3), ("d64 s512 full", 1), ("d256 s*", 15), ("gqa8", 9), ("s4096", 9)]
)
def test_cells_are_chosen_by_words_or_globs(pattern, count):
    """All words of a pattern must be words of the id; a glob matches the whole id."""
    assert len(chosen(read_suite("prefill"), (pattern,))) == count


def test_what_names_nothing_is_an_error_with_the_nearest_names():
    """A mistyped suite is answered with the right one, a filter that keeps nothing with some ids."""
    with pytest.raises(UnknownSuiteError, match="did you mean decode"):
        read_suite("decod")
    with pytest.raises(UnknownSuiteError, match="d64 s512 full"):
        chosen(read_suite("prefill"), ("d96",))
