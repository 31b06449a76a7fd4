"""FlashInfer: requests and plans on the host, page tables, the split scale; what is passed, refused and told."""

from __future__ import annotations

import importlib
import math
import sys

import pytest
import torch

from attn_backends import Environment, LoadError, Request, select
from attn_backends.call import Call
from attn_backends.device import Device
from attn_backends.registry.loading import load_backend
from attn_backends.registry.registry import default_registry
from tests.backends.peer_stand_ins import assert_answers, ends, installed, packed_call, suite_complaints
from tests.backends.sdpa_calls import misses

H200 = Device.pretend("h200")
PAGED = Request(
    dtype="bfloat16", seq_q=1, seq_k=64, num_q_heads=8, num_kv_heads=2, head_dim_qk=128, head_dim_v=128, causal=True,
    phase="decode", page_size=16, kv_layout="NHD",
)  # fmt: skip
DENSE = PAGED.replace(page_size=None, kv_layout=None, seq_q=33, phase="prefill")
TOOTHLESS = torch.iinfo(torch.int32).max  # what a table may hold past a length


@pytest.fixture
def flashinfer():
    """The stand-in's module, nothing planned yet; the adapter loads it."""
    with installed():
        module = importlib.import_module("flashinfer")
        module.plans.clear()
        module.launches.clear()
        yield module


def adapter():
    return importlib.import_module("attn_backends.backends.flashinfer.adapter")


def part(name):
    return importlib.import_module(f"attn_backends.backends.flashinfer.{name}")


def pool(seq_lens, page_size, heads, width, kv_layout, dtype):
    """A cache of shuffled pages: every cell that is nobody's is NaN, table entries past a length are out of range."""
    used = [-(-length // page_size) for length in seq_lens]
    order = torch.randperm(sum(used) + 2).tolist()
    columns = max(used, default=0) + 1
    table = torch.full((len(seq_lens), columns), TOOTHLESS, dtype=torch.int32)
    found = [torch.full((len(order), page_size, heads, width), torch.nan, dtype=torch.float32) for _ in "kv"]
    for sequence, (count, length) in enumerate(zip(used, seq_lens, strict=True)):
        own = [order.pop() for _ in range(count)]
        table[sequence, :count] = torch.tensor(own, dtype=torch.int32)
        for token in range(length):
            for one in found:
                one[own[token // page_size], token % page_size] = torch.randn(heads, width)
    k, v = (one.to(dtype) for one in found)
    if kv_layout == "HND":
        k, v = (one.transpose(1, 2).contiguous() for one in (k, v))
    return k, v, table


def paged_call(q_lens, seq_lens, *, page_size=16, heads=(4, 2), width=64, kv_layout="NHD", dtype=torch.bfloat16,
               kv_dtype=None, packed=True, **changes):  # fmt: skip
    torch.manual_seed(0)
    k, v, table = pool(seq_lens, page_size, heads[1], width, kv_layout, kv_dtype or dtype)
    q = torch.randn(sum(q_lens), heads[0], width).to(dtype)
    fields = {
        "q": q, "k": k, "v": v, "out": torch.full_like(q, torch.nan), "lse": torch.full((heads[0], len(q)), torch.nan),
        "layout": "thd", "cu_seqlens_q": ends(q_lens), "max_seqlen_q": max(q_lens), "max_seqlen_k": max(seq_lens),
        "seq_lens": torch.tensor(seq_lens, dtype=torch.int32), "block_table": table, "kv_layout": kv_layout,
        "softmax_scale": width**-0.5, "phase": "mixed",
    }  # fmt: skip
    if not packed:
        batch, seq = len(q_lens), q_lens[0]
        fields |= {"q": q.view(batch, seq, *q.shape[1:]), "layout": "bshd", "cu_seqlens_q": None}
        fields |= {"out": fields["out"].view(fields["q"].shape), "lse": torch.full((batch, heads[0], seq), torch.nan)}
    return Call(**{**fields, **changes})


DECODE = {
    "pages-of-16": {},
    "pages-of-1": {"page_size": 1},
    "pages-of-5": {"page_size": 5},
    "heads-first": {"kv_layout": "HND"},
    "one-kv-head": {"heads": (7, 1)},
    "window": {"window_left": 5},
    "tiny-scale": {"softmax_scale": 1e-5},
    "negative-scale": {"softmax_scale": -0.3},
    "zero-scale": {"softmax_scale": 0.0},
    "half": {"dtype": torch.float16},
    "other-out-dtype": {"out": torch.full((4, 1, 4, 64), torch.nan)},
}


@pytest.mark.parametrize("changes", DECODE.values(), ids=DECODE)
def test_decode_is_answered(flashinfer, changes):
    """One query per sequence, lengths 0, at and around a page; cells, pages and table entries of nobody are poison."""
    call = paged_call((1, 1, 1, 1), (33, 0, 32, 7), packed=False, causal=True, **changes)
    adapter().run(call)
    assert_answers(call)
    assert len(flashinfer.launches) == 1


APPEND = {
    "full": {},
    "causal": {"causal": True},
    "causal-window": {"causal": True, "window_left": 3},
    "window-alone": {"window_left": 3},
    "heads-first": {"causal": True, "kv_layout": "HND", "page_size": 5},
}


@pytest.mark.parametrize("changes", APPEND.values(), ids=APPEND)
def test_append_and_mixed_are_answered(flashinfer, changes):
    """Several queries, one and none per sequence; fewer keys than queries, and no keys at all."""
    call = paged_call((5, 1, 0, 9, 3), (33, 17, 8, 4, 0), **changes)
    adapter().run(call)
    assert_answers(call)


PREFILL = {
    "ragged": {"tail": 3},
    "causal": {"causal": True},
    "more-queries": {"causal": True, "q_lens": (40, 3), "k_lens": (7, 3)},
    "window": {"causal": True, "window_left": 4},
    "wide": {"width": 256, "causal": True},
}


@pytest.mark.parametrize("changes", PREFILL.values(), ids=PREFILL)
def test_packed_prefill_is_answered(flashinfer, changes):
    """Sequences of their own lengths, empty ones too."""
    given = {"q_lens": (5, 0, 12, 1), "k_lens": (9, 3, 0, 1), "dtype": torch.bfloat16, **changes}
    call = packed_call(given.pop("q_lens"), given.pop("k_lens"), **given)
    adapter().run(call)
    assert_answers(call)


@pytest.mark.parametrize("memory", ["contiguous", "every second sequence", "last dim apart"])
def test_dense_prefill_is_answered(flashinfer, memory):
    """[B, S, H, D] as rows; copied where sequences do not follow each other, and that is said."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 12, heads, 128).bfloat16() for heads in (4, 2, 2))
    if memory == "every second sequence":
        q, k, v = q[::2], k[::2], v[::2]
    elif memory == "last dim apart":
        q, k, v = q[..., ::2], k[..., ::2], v[..., ::2]
    call = Call(
        q=q, k=k, v=v, out=torch.full(q.shape, torch.nan).bfloat16(), lse=torch.full((q.shape[0], 4, 12), torch.nan),
        causal=True, max_seqlen_q=12, max_seqlen_k=12, softmax_scale=0.1,
    )  # fmt: skip
    adapter().run(call)
    assert_answers(call)
    copied = 2 * k.numel() * 2
    assert adapter().conversions(call) == ([] if memory == "contiguous" else [("make_contiguous", copied)])


def test_a_kernel_that_does_not_compile_says_what_it_needs(flashinfer, monkeypatch):
    """FlashInfer's own error, and that it looks for nvcc; the next call tries again."""

    def no_compiler(*given, **named):
        raise RuntimeError("Could not find nvcc")

    call = paged_call((1, 1), (33, 7), packed=False)
    with monkeypatch.context() as patched:
        patched.setattr(flashinfer.BatchPrefillWithPagedKVCacheWrapper, "plan", no_compiler)
        with pytest.raises(RuntimeError, match="Could not find nvcc") as caught:
            adapter().run(call)
    assert "CUDA_HOME" in caught.value.__notes__[0]
    adapter().run(call)
    assert_answers(call)


@pytest.mark.parametrize("descales", [(0.5, 2.0), (1e-4, 1e-3), (300.0, 0.1)], ids=str)
def test_fp8_caches_are_scaled_on_read(flashinfer, descales):
    """Whatever the descale of K, hidden keys stay hidden: the scale is split before the kernel sees it."""
    k_descale, v_descale = (torch.tensor([scale]) for scale in descales)
    call = paged_call(
        (1, 1, 1), (33, 17, 8), kv_dtype=torch.float8_e4m3fn, width=128, causal=True, k_descale=k_descale,
        v_descale=v_descale, k_format="scaled-fp8-e4m3", v_format="scaled-fp8-e4m3", k_granularity="per_tensor",
        v_granularity="per_tensor", packed=False, softmax_scale=0.1 / descales[0],
    )  # fmt: skip
    adapter().run(call)
    assert_answers(call, atol=2e-3 * max(1.0, descales[1]))


def test_scores_far_below_the_kernels_sentinel_get_a_softmax(flashinfer):
    """Four keys at -60000 weigh the same, though FlashInfer starts its maximum at -50000."""
    call = paged_call((1,), (4,), packed=False, softmax_scale=1.0)
    call.q.fill_(-60000.0 / 64)
    call.k[call.block_table[0, 0].long(), :4] = 1.0
    adapter().run(call)
    assert_answers(call)
    assert call.lse.max() < -50000


def test_the_split_scale_is_exact_and_leaves_the_kernel_64_to_128():
    """Product = scale; what q is multiplied by is a power of two; a large scale leaves q alone."""
    split_scale = part("scaling").split_scale
    for scale in (1e-30, 1e-5, 0.0884, 0.125, 1.0, 63.9, -0.3):
        factor, rest = split_scale(scale)
        assert factor * rest == scale
        assert math.frexp(abs(factor))[0] == 0.5
        assert 64.0 <= rest < 128.0
    assert split_scale(200.0) == (1.0, 200.0)
    assert split_scale(-200.0) == (-1.0, 200.0)
    assert split_scale(0.0)[0] == 0.0


REQUESTS = {  # (rows, keys, causal) -> requests
    "plain": (((3, 4), (9, 4), True), ((3, 4), (9, 4))),
    "more-rows-than-keys": (((5, 4), (2, 4), True), ((3, 2, 4), (0, 2, 4))),
    "more-rows-but-not-causal": (((5,), (2,), False), ((5,), (2,))),
    "no-keys": (((5, 1), (0, 4), False), ((5, 1), (0, 4))),
    "no-rows-keep-their-keys": (((0, 2), (7, 4), True), ((0, 2), (7, 4))),
    "nothing-at-all": (((0, 2), (0, 4), True), ((2,), (4,))),
}


@pytest.mark.parametrize(("given", "expected"), REQUESTS.values(), ids=REQUESTS)
def test_rows_that_see_nothing_are_requests_of_their_own(given, expected):
    """FlashInfer's causal arithmetic is unsigned: no causal request has more rows than keys."""
    rows, keys, causal = given
    found = part("requests").requests_of(rows, keys, causal=causal)
    assert (found.rows, found.keys) == expected


def test_requests_in_numbers():
    """Starts, pages, last pages and empty rows, by hand."""
    found = part("requests").requests_of((5, 1, 2), (2, 0, 33), causal=True)
    assert (found.rows, found.keys) == ((3, 2, 1, 2), (0, 2, 0, 33))
    assert found.row_starts == [0, 3, 5, 6, 8]
    assert found.key_starts == [0, 0, 2, 2, 35]
    assert found.page_starts(16) == [0, 0, 1, 1, 4]
    assert found.last_page_lengths(16) == [16, 2, 16, 1]
    assert found.empty_rows() == [0, 1, 2, 5]
    assert not found.blank
    assert part("requests").requests_of((5, 0), (0, 3), causal=False).blank


def test_pages_in_use_are_sequence_after_sequence():
    """The table's tails are left out, a full page at the end is one page."""
    table = torch.tensor([[7, 8, -1], [9, TOOTHLESS, 5], [1, 2, 3]], dtype=torch.int32)
    lengths = torch.tensor([17, 0, 48], dtype=torch.int32)
    assert part("pages").pages_in_use(table, lengths, 16, 5).tolist() == [7, 8, 1, 2, 3]


# -- plans -------------------------------------------------------------------------------------------------------


def test_one_plan_serves_every_layer(flashinfer):
    """The same lengths, other tensors: planned once; the lengths are read from the device once."""
    call = paged_call((1, 1), (33, 7), packed=False)
    for _ in range(3):
        call.q, call.out = torch.randn_like(call.q), torch.empty_like(call.out)
        adapter().run(call)
        assert_answers(call)
    assert (len(flashinfer.plans), len(flashinfer.launches)) == (1, 3)


def test_lengths_that_changed_in_place_are_planned_anew(flashinfer):
    """A growing decode: torch counts its writes."""
    call = paged_call((1, 1), (33, 7), packed=False)
    adapter().run(call)
    call.seq_lens -= 3
    adapter().run(call)
    assert_answers(call)
    assert len(flashinfer.plans) == 2


def test_equal_lengths_in_a_new_tensor_keep_the_plan(flashinfer):
    """What counts is what they say."""
    call = paged_call((1, 1), (33, 7), packed=False)
    adapter().run(call)
    call.seq_lens = call.seq_lens.clone()
    adapter().run(call)
    assert len(flashinfer.plans) == 1


@pytest.mark.parametrize("write", ["in place", "a new tensor", "under inference mode"])
def test_other_pages_at_the_same_lengths_are_followed(flashinfer, write):
    """The table's contents are no part of the plan, and never taken from the call before."""
    call = paged_call((1, 1), (33, 7), packed=False)
    adapter().run(call)
    moved = torch.tensor([call.k.shape[0] - 1 - page for page in range(call.k.shape[0])])
    k, v = call.k[moved].clone(), call.v[moved].clone()
    table = torch.where(call.block_table == TOOTHLESS, TOOTHLESS, call.k.shape[0] - 1 - call.block_table)
    call.k, call.v = k, v
    if write == "in place":
        call.block_table.copy_(table)
        adapter().run(call)
    elif write == "a new tensor":
        call.block_table = table
        adapter().run(call)
    else:
        with torch.inference_mode():
            call.block_table = table.clone()
            adapter().run(call)
            call.block_table.copy_(table.clone())
            adapter().run(call)
    assert_answers(call)
    assert len(flashinfer.plans) == 1


def test_inference_tensors_are_read_at_every_call(flashinfer):
    """Nobody counts their writes."""
    with torch.inference_mode():
        call = paged_call((1, 1), (33, 7), packed=False)
        adapter().run(call)
        call.seq_lens -= 3
        adapter().run(call)
        assert_answers(call)
    assert len(flashinfer.plans) == 2


PLANNED_APART = {
    "window": {"window_left": 3},
    "page size": {"page_size": 8},
    "heads": {"heads": (8, 2)},
    "lengths": {"seq_lens": (33, 8)},
    "dtype": {"dtype": torch.float16},
    "layout": {"kv_layout": "HND"},
}


@pytest.mark.parametrize("changes", PLANNED_APART.values(), ids=PLANNED_APART)
def test_what_a_plan_depends_on_makes_another(flashinfer, changes):
    """And what it does not depend on, the scale, does not."""
    adapter().run(paged_call((1, 1), (33, 7), packed=False))
    adapter().run(paged_call((1, 1), (33, 7), packed=False, softmax_scale=0.7))
    assert len(flashinfer.plans) == 1
    given = {"seq_lens": (33, 7), **changes}
    adapter().run(paged_call((1, 1), given.pop("seq_lens"), packed=False, **given))
    assert len(flashinfer.plans) == 2


def test_plans_are_bounded_and_their_wrappers_used_again(flashinfer):
    """A decode that grows for long: the right answers, and no more wrappers than there are plans kept."""
    most = part("plans").MOST
    for length in range(20, 20 + 3 * most):
        call = paged_call((1, 1), (length, 7), packed=False)
        adapter().run(call)
        assert_answers(call)
    assert len(flashinfer.plans) == 3 * most
    assert len({id(plan["self"]) for plan in flashinfer.plans}) == most


def test_a_plan_says_what_the_call_is(flashinfer):
    """The arguments of FlashInfer's `plan`, by name."""
    adapter().run(paged_call((5, 2), (33, 7), causal=True, window_left=3, heads=(8, 2), kv_layout="HND"))
    plan = flashinfer.plans[-1]
    assert plan["qo_indptr"].tolist() == [0, 5, 7]
    assert plan["paged_kv_indptr"].tolist() == [0, 3, 4]
    assert plan["paged_kv_last_page_len"].tolist() == [1, 7]
    assert plan["seq_lens"].tolist() == [33, 7]
    assert (plan["num_qo_heads"], plan["num_kv_heads"], plan["head_dim_qk"], plan["page_size"]) == (8, 2, 64, 16)
    assert (plan["causal"], plan["window_left"]) == (True, 3)
    assert plan["qo_indptr"].device.type == plan["paged_kv_indptr"].device.type == "cpu"


def test_a_window_over_everything_and_causal_over_one_row_are_nothing(flashinfer):
    """They would compile and run another kernel for the same result."""
    adapter().run(paged_call((1, 1), (33, 7), packed=False, causal=True, window_left=33))
    assert (flashinfer.plans[-1]["causal"], flashinfer.plans[-1]["window_left"]) == (False, -1)


def test_the_kernel_writes_into_the_callers_memory(flashinfer):
    """No copy of the output where it is contiguous and of q's dtype."""
    call = paged_call((1, 1), (33, 7), packed=False)
    adapter().run(call)
    assert flashinfer.launches[-1]["out"].data_ptr() == call.out.data_ptr()


def test_caches_of_different_strides_are_copied_and_that_is_said(flashinfer):
    """FlashInfer reads K and V at one set of strides."""
    call = paged_call((1, 1), (33, 7), packed=False)
    wide = torch.full((*call.v.shape[:-1], 128), torch.nan, dtype=call.v.dtype)
    wide[..., :64] = call.v
    call.v = wide[..., :64]
    assert adapter().conversions(call) == [("make_contiguous", 2 * call.k.numel() * 2)]
    adapter().run(call)
    assert_answers(call)


def test_rows_behind_the_last_sequence_are_written(flashinfer):
    """They are nobody's, but no memory of the host's stays as it was."""
    call = paged_call((5, 2), (33, 7))
    call.cu_seqlens_q = torch.tensor([0, 3, 5], dtype=torch.int32)
    adapter().run(call)
    assert not call.out[5:].any()
    assert (call.lse[:, 5:] == -torch.inf).all()
    assert not call.out.isnan().any()


# -- manifests, installs -----------------------------------------------------------------------------------------

REFUSED = {
    "float32": (DENSE, {"dtype": "float32"}),
    "gradients": (DENSE, {"needs_backward": True}),
    "softcap": (PAGED, {"softcap": 30.0}),
    "two-sided window": (DENSE, {"causal": False, "window_left": 3, "window_right": 3}),
    "top-left": (DENSE, {"causal_alignment": "top_left"}),
    "sinks": (PAGED, {"sinks": True}),
    "alibi": (PAGED, {"alibi": True}),
    "mask": (DENSE, {"mask": "bool"}),
    "seq_lens": (DENSE, {"dense_lengths": True}),
    "width 80": (PAGED, {"head_dim_qk": 80, "head_dim_v": 80}),
    "widths apart": (PAGED, {"head_dim_v": 64}),
    "graphs": (PAGED, {"graph": "uniform_decode"}),
    "int8 cache": (PAGED, {"k_format": "scaled-int8", "v_format": "scaled-int8", "k_granularity": "per_tensor", "v_granularity": "per_tensor"}),
    "fp8 per head": (PAGED, {"k_format": "scaled-fp8-e4m3", "v_format": "scaled-fp8-e4m3", "k_granularity": "per_head", "v_granularity": "per_head"}),
    "fp8 with narrow heads": (PAGED.replace(head_dim_qk=64, head_dim_v=64), {"k_format": "scaled-fp8-e4m3", "v_format": "scaled-fp8-e4m3", "k_granularity": "per_tensor", "v_granularity": "per_tensor"}),
    "batch invariance": (PAGED, {"batch_invariant": True}),
}  # fmt: skip


@pytest.mark.parametrize(("plain", "changes"), REFUSED.values(), ids=REFUSED)
def test_what_the_adapter_cannot_do_is_refused(plain, changes):
    """The plain request is served."""
    assert not misses("flashinfer", plain, H200)
    assert misses("flashinfer", plain.replace(**changes), H200)


def test_a_missing_package_is_a_requirement_with_a_hint():
    """`pip install` stands in the reason."""
    here = Environment(versions=(("torch", "2.11.0"),))
    found = select(PAGED, device=H200, environment=here).candidates
    candidate = next(one for one in found if one.name == "flashinfer")
    assert [(reason.code, reason.axis) for reason in candidate.reasons] == [("requirement", "flashinfer-python")]
    assert "pip install 'flashinfer-python" in candidate.reasons[0].hint


def test_selecting_loads_nothing():
    """FlashInfer takes seconds to import: not before a call needs it."""
    with installed():
        assert select(PAGED, device=H200, backend="flashinfer").backend == "flashinfer"
        assert "flashinfer" not in sys.modules


def test_a_broken_install_is_told_with_its_own_words(tmp_path):
    """A dependency that is missing is named."""
    (tmp_path / "flashinfer.py").write_text("import a_module_that_nobody_has\n")
    with installed(tmp_path), pytest.raises(LoadError, match=r"a_module_that_nobody_has.*pip install"):
        load_backend(default_registry().snapshot().get("flashinfer"))


def test_the_suite_finds_nothing(flashinfer):
    """Some of the conformance suite's items, on the stand-in."""
    assert suite_complaints("flashinfer", every=40) == []
