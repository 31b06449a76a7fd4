"""torch's `varlen_attn`: what is passed to it, what is refused, what it must never meet."""

from __future__ import annotations

import importlib

import pytest
import torch
import torch.nn.attention.varlen

from attn_backends import Environment, Request, select
from attn_backends.device import Device
from tests.backends.fake_peers import varlen as stand_in
from tests.backends.peer_stand_ins import assert_answers, installed, packed_call, reference, suite_complaints
from tests.backends.sdpa_calls import misses

H200 = Device.pretend("h200")
PLAIN = Request(
    dtype="bfloat16", seq_q=17, seq_k=33, num_q_heads=4, num_kv_heads=2, head_dim_qk=64, head_dim_v=64, causal=True,
    layout="thd", varlen=True,
)  # fmt: skip
LENGTHS = ((5, 0, 40, 1), (70, 3, 0, 9))
DTYPES = (torch.float16, torch.bfloat16)


@pytest.fixture
def varlen(monkeypatch):
    """The adapter, loaded anew over the stand-in."""
    stand_in.calls.clear()
    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", stand_in.varlen_attn)
    with installed():
        yield importlib.import_module("attn_backends.backends.torch_varlen.adapter")


CALLS = {
    "full": {},
    "causal": {"causal": True},
    "left": {"window_left": 3},
    "left-causal": {"window_left": 3, "causal": True},
    "right": {"window_right": 2},
    "both": {"window_left": 2, "window_right": 1},
    "poisoned-tail": {"tail": 3, "causal": True},
    "poisoned-tail-window": {"tail": 70, "window_left": 3, "causal": True},
    "width-13-is-padded": {"width": 13, "causal": True},
    "narrow-values": {"width": 64, "width_v": 24},
    "left-with-more-queries": {"window_left": 3, "lengths": ((40, 9), (7, 20))},
    "right-with-more-queries": {"window_right": 8, "lengths": ((40, 9), (7, 7))},
    "right-beyond-all": {"window_right": 47, "lengths": ((40,), (7,))},
    "negative-scale": {"softmax_scale": -0.2, "causal": True},
    "zero-scale": {"softmax_scale": 0.0},
    "one-query-each": {"causal": True, "heads": (8, 2), "lengths": ((1, 0, 1, 1), (9, 4, 0, 1))},
}


def call_of(changes, dtype):
    given = {"lengths": LENGTHS, **changes}
    return packed_call(*given.pop("lengths"), dtype=dtype, **given)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("changes", CALLS.values(), ids=CALLS)
def test_packed_calls_are_answered(varlen, changes, dtype):
    """Output and LSE are the reference's; a row that sees nothing has an LSE of -inf, where the kernel says +inf."""
    call = call_of(changes, dtype)
    varlen.run(call)
    assert_answers(call)
    assert stand_in.calls


@pytest.mark.parametrize("changes", CALLS.values(), ids=CALLS)
def test_gradients_are_those_of_the_reference(varlen, changes):
    """dq, dk and dv, 0 in rows behind the last sequence; a second backward through the same forward gives them again."""
    call = call_of({**changes, "needs_backward": True}, torch.float16)
    varlen.run(call)
    d_out = torch.randn_like(call.out)
    wanted = reference(call)
    expected = importlib.import_module("attn_backends.backends.eager.adapter").backward(wanted, d_out, None)
    for _ in range(2):
        got = varlen.backward(call, d_out, None)
        for name in "qkv":
            torch.testing.assert_close(getattr(got, name), getattr(expected, name), rtol=2e-2, atol=4e-3)
            assert getattr(got, name).shape == getattr(call, name).shape


def test_keys_that_the_window_hides_from_all_may_hold_anything(varlen):
    """NaN far before the window, in K and V, reaches neither outputs nor gradients."""
    found = []
    for junk in (0.0, torch.nan):
        call = packed_call((3, 2), (40, 9), dtype=torch.float16, causal=True, window_left=4, needs_backward=True)
        call.k[:33], call.v[:33] = junk, junk  # the first row of 3 stands at 37
        varlen.run(call)
        found.append((call.out, *(getattr(varlen.backward(call, torch.ones_like(call.out), None), n) for n in "qkv")))
    for clean, poisoned in zip(*found, strict=True):
        assert torch.equal(clean, poisoned)


PASSED = {
    "full": ({}, (-1, -1)),
    "causal": ({"causal": True}, (-1, 0)),
    "causal-left": ({"causal": True, "window_left": 7}, (7, 0)),
    "causal-hides-the-right": ({"causal": True, "window_right": 7}, (-1, 0)),
    "two-sided": ({"window_left": 7, "window_right": 2}, (7, 2)),
}


@pytest.mark.parametrize(("given", "window"), PASSED.values(), ids=PASSED)
def test_windows_reach_the_function(varlen, given, window):
    """Causal is a window of (-1, 0); the rest as it is."""
    varlen.run(packed_call((5, 9), (20, 30), dtype=torch.bfloat16, **given))
    assert stand_in.calls[-1]["window_size"] == window


def test_lengths_reach_the_function_and_a_longest_query_of_one_does_not(varlen):
    """The kernel takes a longest query of 1 to mean one row per sequence, whatever the sums say."""
    call = packed_call((0, 1, 1), (4, 5, 6), dtype=torch.bfloat16)
    varlen.run(call)
    passed = stand_in.calls[-1]
    assert (passed["max_q"], passed["max_k"]) == (2, 6)
    assert passed["cu_seq_q"].tolist() == [0, 0, 1, 2]
    assert_answers(call)


def test_heads_are_grouped_with_and_without_the_word_for_it(varlen, monkeypatch):
    """torch 2.11 has no `enable_gqa`; later versions refuse grouped heads without it."""
    varlen.run(packed_call((5,), (9,), dtype=torch.bfloat16))
    assert stand_in.calls[-1]["enable_gqa"] is True

    def as_in_2_11(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux, scale, window_size):
        return stand_in.varlen_attn(
            query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, return_aux=return_aux, scale=scale,
            window_size=window_size, enable_gqa=True,
        )  # fmt: skip

    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", as_in_2_11)
    with installed():
        call = packed_call((5,), (9,), dtype=torch.bfloat16)
        importlib.import_module("attn_backends.backends.torch_varlen.adapter").run(call)
        assert_answers(call)


def test_no_sequence_and_no_key_never_reach_the_function(varlen):
    """The answer is 0 and -inf, the gradients are 0."""
    call = packed_call((3, 2), (0, 0), dtype=torch.float16, needs_backward=True)
    varlen.run(call)
    assert not call.out.any()
    assert (call.lse == -torch.inf).all()
    assert not varlen.backward(call, torch.ones_like(call.out), None).q.any()
    assert not stand_in.calls


CONVERTED = {
    "nothing": ({}, {}),
    "window": ({"window_left": 2}, {"sanitize_kv": 14 * 2 * 64 * 2}),
    "window-gradients": ({"window_left": 2, "needs_backward": True}, {"sanitize_kv": 2 * 14 * 2 * 64 * 2}),
    "widths": ({"width": 60}, {"make_contiguous": 14 * 8 * 60 * 2, "pad_head_dim": 14 * 8 * 64 * 2}),
}


@pytest.mark.parametrize(("changes", "expected"), CONVERTED.values(), ids=CONVERTED)
def test_conversions_are_named_with_their_bytes(varlen, changes, expected):
    """What `run` copies, `conversions` says."""
    assert dict(varlen.conversions(packed_call((5, 9), (5, 9), dtype=torch.float16, **changes))) == expected


REFUSED = {
    "float32": ({"dtype": "float32"}, {"dtype"}),
    "dense": ({"layout": "bshd", "varlen": False}, {"layout", "varlen"}),
    "softcap": ({"softcap": 30.0}, {"softcap"}),
    "top-left": ({"causal_alignment": "top_left"}, {"causal_alignment"}),
    "sinks": ({"sinks": True}, {"sinks"}),
    "dropout": ({"dropout_p": 0.1}, {"dropout"}),
    "gradient of the LSE": ({"needs_backward": True, "return_lse": True}, {"lse", "backward"}),
    "same bits backwards": ({"needs_backward": True, "deterministic": True}, {"deterministic", "backward"}),
    "pages": ({"page_size": 16, "kv_layout": "NHD"}, {"page_size", "kv_layout"}),
    "wide heads": ({"head_dim_qk": 264, "head_dim_v": 264}, {"head_dim", "head_dim_v"}),
}


@pytest.mark.parametrize(("changes", "axes"), REFUSED.values(), ids=REFUSED)
def test_what_the_function_cannot_do_is_refused(changes, axes):
    """Some axis of those that the feature is about; the plain request is served."""
    assert not misses("torch_varlen", PLAIN, H200)
    decision = select(PLAIN.replace(**changes), device=H200)
    refused = next(one for one in decision.candidates if one.name == "torch_varlen")
    assert {reason.code for reason in refused.reasons} & axes
    assert refused.status != "chosen"


def test_an_older_torch_is_a_requirement():
    """The function came with torch 2.10; what this adapter passes, with 2.11."""
    old = Environment.pretend(torch="2.10.0")
    candidate = next(
        one for one in select(PLAIN, device=H200, environment=old).candidates if one.name == "torch_varlen"
    )
    assert [reason.code for reason in candidate.reasons] == ["requirement"]


def test_the_suite_finds_nothing(varlen):
    """Some of the conformance suite's items, on the stand-in."""
    assert suite_complaints("torch_varlen", every=20) == []
