"""FlashAttention-3: what is passed to the package, what is refused, how a missing or broken one is told."""

from __future__ import annotations

import importlib
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
PLAIN = Request(
    dtype="bfloat16", seq_q=17, seq_k=33, num_q_heads=4, num_kv_heads=2, head_dim_qk=64, head_dim_v=64, causal=True
)  # fmt: skip
PACKED = PLAIN.replace(layout="thd", varlen=True)
FP8 = PLAIN.replace(
    dtype="float8_e4m3fn", q_format="scaled-fp8-e4m3", k_format="scaled-fp8-e4m3", v_format="scaled-fp8-e4m3",
    q_granularity="per_tensor", k_granularity="per_head", v_granularity="per_head",
)  # fmt: skip


@pytest.fixture
def fa3():
    """The stand-in's module, `calls` empty; adapters load it."""
    with installed():
        module = importlib.import_module("fa3_fwd_interface")
        module.calls.clear()
        yield module


def adapter(name="fa3"):
    return importlib.import_module(f"attn_backends.backends.{name}.adapter")


def dense_call(batch=2, seq_q=17, seq_k=33, width=64, width_v=None, layout="bshd", heads=(4, 2), **changes):
    torch.manual_seed(0)
    width_v = width_v or width

    def tensor(seq, count, size, fill=None):
        shape = (batch, seq, count, size) if layout == "bshd" else (batch, count, seq, size)
        made = torch.randn(shape) if fill is None else torch.full(shape, fill)
        return made.bfloat16()

    fields = {
        "q": tensor(seq_q, heads[0], width), "k": tensor(seq_k, heads[1], width), "v": tensor(seq_k, heads[1], width_v),
        "out": tensor(seq_q, heads[0], width_v, torch.nan), "lse": torch.full((batch, heads[0], seq_q), torch.nan),
        "layout": layout, "max_seqlen_q": seq_q, "max_seqlen_k": seq_k, "softmax_scale": width**-0.5,
    }  # fmt: skip
    return Call(**{**fields, **changes})


DENSE = {
    "full": {},
    "causal": {"causal": True},
    "more-queries": {"causal": True, "seq_q": 33, "seq_k": 17},
    "heads-first": {"causal": True, "layout": "bhsd"},
    "width-40": {"width": 40},
    "width-13-is-padded": {"width": 13, "causal": True},
    "narrow-keys": {"width": 64, "width_v": 128},
    "deepseek": {"width": 192, "width_v": 128},
    "other-pair-is-padded": {"width": 128, "width_v": 80},
    "softcap": {"softcap": 20.0},
    "negative-scale": {"softmax_scale": -0.2},
    "zero-scale": {"softmax_scale": 0.0, "causal": True},
    "no-keys": {"seq_k": 0},
    "other-out-dtype": {"out": torch.full((2, 17, 4, 64), torch.nan)},
}


@pytest.mark.parametrize("changes", DENSE.values(), ids=DENSE)
def test_dense_calls_are_answered(fa3, changes):
    """Output and LSE are the reference's, and the package did the work wherever there is any."""
    call = dense_call(**changes)
    adapter().run(call)
    assert_answers(call)
    assert len(fa3.calls) == (0 if call.max_seqlen_k == 0 else 1)


PACKED_CALLS = {
    "ragged": {},
    "causal": {"causal": True},
    "poisoned-tail": {"tail": 3},
    "poisoned-tail-causal": {"tail": 70, "causal": True},
    "width-13-is-padded": {"width": 13, "causal": True},
    "deepseek": {"width": 192, "width_v": 128},
    "softcap": {"softcap": 20.0, "causal": True},
    "negative-scale": {"softmax_scale": -0.2},
}


@pytest.mark.parametrize("changes", PACKED_CALLS.values(), ids=PACKED_CALLS)
def test_packed_calls_are_answered(fa3, changes):
    """Empty sequences on either side and NaN behind the last one change nothing that is somebody's."""
    call = packed_call((5, 0, 40, 1), (70, 3, 0, 9), dtype=torch.bfloat16, **changes)
    adapter().run(call)
    assert_answers(call)


def test_no_sequence_and_no_key_never_reach_the_package(fa3):
    """The answer is 0 and -inf, and the kernel is not launched on nothing."""
    call = packed_call((3, 2), (0, 0), dtype=torch.bfloat16)
    adapter().run(call)
    assert not call.out.any()
    assert (call.lse == -torch.inf).all()
    assert not fa3.calls


PASSED = {  # call -> what the operator gets
    "full": ({}, {"is_causal": False, "softcap": 0.0, "num_splits": 0, "softmax_scale": 0.125}),
    "causal": ({"causal": True}, {"is_causal": True}),
    "one-query-sees-all": ({"causal": True, "seq_q": 1}, {"is_causal": False}),
    "softcap": ({"softcap": 30.0}, {"softcap": 30.0}),
    "a-cap-beyond-float32": ({"softcap": 1e300}, {"softcap": 0.0}),
    "negative-scale": ({"softmax_scale": -0.3}, {"softmax_scale": 0.3}),
    "batch-invariant": ({"batch_invariant": True}, {"num_splits": 1}),
}


@pytest.mark.parametrize(("given", "expected"), PASSED.values(), ids=PASSED)
def test_arguments_reach_the_operator(fa3, given, expected):
    """Each argument of a dense call under the operator's name for it."""
    adapter().run(dense_call(**given))
    assert {name: fa3.calls[-1][name] for name in expected} == expected


def test_packed_lengths_reach_the_operator(fa3):
    """Cumulative sums as they are; the longest query is never said to be 1, for which the kernel changes its ways."""
    call = packed_call((1, 1), (5, 7), dtype=torch.bfloat16, causal=True)
    adapter().run(call)
    passed = fa3.calls[-1]
    assert passed["cu_seqlens_q"].tolist() == [0, 1, 2]
    assert passed["cu_seqlens_k"].tolist() == [0, 5, 12]
    assert (passed["max_seqlen_q"], passed["max_seqlen_k"]) == (2, 7)
    assert (passed["is_causal"], passed["num_splits"]) == (True, 1)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_the_kernel_writes_into_the_callers_memory(fa3, layout):
    """No copy of the output where its memory will do."""
    call = dense_call(layout=layout)
    adapter().run(call)
    assert fa3.calls[-1]["out"].data_ptr() == call.out.data_ptr()
    packed = packed_call((5, 9), (5, 9), dtype=torch.bfloat16)
    adapter().run(packed)
    assert fa3.calls[-1]["out"].data_ptr() == packed.out.data_ptr()


def test_only_the_rows_that_see_something_are_the_kernels(fa3):
    """With more queries than keys it gets the last rows alone, and writes them where they belong."""
    call = dense_call(causal=True, seq_q=33, seq_k=17)
    adapter().run(call)
    assert fa3.calls[-1]["q"].shape[1] == 17
    assert fa3.calls[-1]["out"].data_ptr() == call.out[:, 16:].data_ptr()
    assert_answers(call)


def test_an_output_of_other_strides_is_filled(fa3):
    """A caller's `out` that the kernel cannot write to gets a copy."""
    call = dense_call()
    call.out = torch.full((*call.out.shape[:-1], 128), torch.nan).bfloat16()[..., ::2]
    adapter().run(call)
    assert fa3.calls[-1]["out"] is None
    assert_answers(call)


CONVERTED = {
    "nothing": (dense_call, {}, {}),
    "strides": (dense_call, {"q": torch.randn(2, 17, 4, 128).bfloat16()[..., ::2]}, {"make_contiguous": 17408}),
    "widths": (dense_call, {"width": 13}, {"make_contiguous": 10400, "pad_head_dim": 12800}),
    "packed": (
        lambda **more: packed_call((5, 9), (5, 9), dtype=torch.bfloat16, **more), {}, {"sanitize_kv": 14 * 2 * 64 * 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "changes", "expected"), CONVERTED.values(), ids=CONVERTED)
def test_conversions_are_named_with_their_bytes(fa3, make, changes, expected):
    """What `run` copies, `conversions` says."""
    assert dict(adapter().conversions(make(**changes))) == expected


DESCALES = {
    "numbers": (torch.tensor(0.5), torch.tensor([2.0]), torch.tensor(3.0)),
    "heads": (torch.tensor(1.0), torch.tensor([0.5, 2.0]), torch.tensor([3.0, 4.0])),
    "sequences-and-heads": (torch.tensor(1.0), torch.rand(2, 2) + 0.5, torch.rand(2, 2) + 0.5),
}


@pytest.mark.parametrize("descales", DESCALES.values(), ids=DESCALES)
def test_fp8_descales_reach_the_operator_by_sequence_and_head(fa3, descales):
    """Whatever their shape, the operator sees [B, Hkv]; the values are those of the reference."""
    tensors = dense_call()
    call = dense_call(
        **{name: getattr(tensors, name).to(torch.float8_e4m3fn) for name in "qkv"}, q_descale=descales[0],
        k_descale=descales[1], v_descale=descales[2], q_granularity="per_tensor", causal=True,
        k_granularity="per_tensor" if descales[1].numel() == 1 else "per_head", q_format="scaled-fp8-e4m3",
        v_granularity="per_tensor" if descales[2].numel() == 1 else "per_head", k_format="scaled-fp8-e4m3",
        v_format="scaled-fp8-e4m3",
    )  # fmt: skip
    adapter("fa3_fp8").run(call)
    assert [tuple(fa3.calls[-1][f"{name}_descale"].shape) for name in "qkv"] == [(2, 2)] * 3
    assert_answers(call)


REFUSED = {
    "float16": (PLAIN, {"dtype": "float16"}, {"dtype"}),
    "gradients": (PLAIN, {"needs_backward": True}, {"backward"}),
    "window": (PLAIN, {"window_left": 8}, {"window"}),
    "top-left": (PLAIN, {"causal_alignment": "top_left"}, {"causal_alignment"}),
    "bool mask": (PLAIN, {"mask": "bool"}, {"mask"}),
    "bias": (PLAIN, {"bias": True}, {"bias"}),
    "sinks": (PLAIN, {"sinks": True}, {"sinks"}),
    "alibi": (PLAIN, {"alibi": True}, {"alibi"}),
    "dropout": (PLAIN, {"dropout_p": 0.1}, {"dropout"}),
    "seq_lens": (PLAIN, {"dense_lengths": True}, {"dense_lengths"}),
    "pages": (PACKED, {"page_size": 128, "kv_layout": "NHD"}, {"page_size", "kv_layout"}),
    "wide heads": (PLAIN, {"head_dim_qk": 264, "head_dim_v": 264}, {"head_dim", "head_dim_v"}),
    "fp8 keys alone": (PLAIN, {"k_format": "scaled-fp8-e4m3", "k_granularity": "per_tensor"}, {"kv_format", "scale_granularity"}),
}  # fmt: skip


@pytest.mark.parametrize(("plain", "changes", "axes"), REFUSED.values(), ids=REFUSED)
def test_what_the_build_cannot_do_is_refused(plain, changes, axes):
    """Under the axis that it is about; the plain requests are served."""
    assert not misses("fa3", plain, H200)
    decision = select(plain.replace(**changes), device=H200, policy=None)
    refused = next(one for one in decision.candidates if one.name == "fa3")
    assert {reason.code for reason in refused.reasons} == axes


def test_other_architectures_are_refused():
    """The package was run on sm_90 alone."""
    assert misses("fa3", PLAIN, Device.pretend("a100"))
    assert misses("fa3_fp8", FP8, Device.pretend("b200"))


def test_fp8_per_head_queries_need_a_kv_head_each():
    """The kernel scales q by KV head: with grouped heads only one number will do."""
    by_head = FP8.replace(q_granularity="per_head", head_dim_qk=128, head_dim_v=128)
    assert misses("fa3_fp8", by_head, H200)
    assert not misses("fa3_fp8", by_head.replace(num_kv_heads=4), H200)
    assert not misses("fa3_fp8", FP8, H200)


def test_fp8_is_never_chosen_unasked():
    """It rounds the weights: `numerics` refuses it until the policy says otherwise."""
    candidate = next(one for one in select(FP8, device=H200).candidates if one.name == "fa3_fp8")
    assert [reason.code for reason in candidate.reasons] == ["numerics"]


# -- installed, missing, broken ----------------------------------------------------------------------------------


def test_a_missing_package_is_a_requirement_with_a_hint():
    """`pip install` stands in the reason."""
    here = Environment(versions=(("torch", "2.11.0"),))
    candidate = next(one for one in select(PLAIN, device=H200, environment=here).candidates if one.name == "fa3")
    assert [(reason.code, reason.axis) for reason in candidate.reasons] == [("requirement", "fa3-fwd")]
    assert "pip install 'fa3-fwd" in candidate.reasons[0].hint


def test_selecting_loads_nothing():
    """Neither the package nor the adapter is imported before a call needs it."""
    with installed():
        assert select(PLAIN, device=H200, backend="fa3").backend == "fa3"
        assert "fa3_fwd_interface" not in sys.modules
        assert "attn_backends.backends.fa3.adapter" not in sys.modules


def test_a_broken_install_is_told_with_its_own_words(tmp_path):
    """A wheel for another CUDA: the loader's text, and what to do."""
    (tmp_path / "fa3_fwd_interface.py").write_text("raise ImportError('libcudart.so.99: no such file')\n")
    with installed(tmp_path), pytest.raises(LoadError, match=r"libcudart\.so\.99.*reinstall both together"):
        load_backend(default_registry().snapshot().get("fa3"))


def test_an_interface_without_its_operator_is_a_broken_install(tmp_path):
    """A module of that name that holds something else."""
    (tmp_path / "fa3_fwd_interface.py").write_text("")
    with installed(tmp_path), pytest.raises(LoadError, match="it holds no fa3_fwd_cuda"):
        load_backend(default_registry().snapshot().get("fa3"))


def test_no_package_at_all_says_which_to_install():
    """For one who names the backend where requirements are not looked at."""
    with installed(None), pytest.raises(LoadError, match="pip install fa3-fwd"):
        load_backend(default_registry().snapshot().get("fa3"))


def test_upstreams_own_build_will_do(tmp_path):
    """`flash_attn_interface` holds the same operator, under either of its names."""
    source = "class {name}:\n    def fwd(*given, **named):\n        return 'upstream'\n"
    for name in ("flash_attn_3_cuda", "flash_attn_3_gpu"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "flash_attn_interface.py").write_text(source.format(name=name))
        with installed(folder):
            assert importlib.import_module("attn_backends.backends.fa3.kernel").forward() == "upstream"


@pytest.mark.parametrize("name", ["fa3", "fa3_fp8"])
def test_the_suite_finds_nothing(fa3, name):
    """Some of the conformance suite's items, on the stand-in."""
    assert suite_complaints(name, every=20) == []


def test_ends_are_cumulative():
    """The helper of these tests."""
    assert ends((5, 0, 2)).tolist() == [0, 5, 5, 7]
