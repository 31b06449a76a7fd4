"""Bad input: each a typed error with what was asked, what is allowed and what to do, and nothing partly done."""

from __future__ import annotations

import warnings

import pytest
import torch

from attn_backends import (
    BlockMask,
    NoBackendError,
    Policy,
    PolicyError,
    Request,
    RequestError,
    UnfitBackendError,
    UnknownBackendError,
    attention,
    cache_info,
    clear_cache,
    launches,
    select,
)

Q, K, V = torch.ones(2, 3, 4, 8), torch.ones(2, 5, 2, 8), torch.ones(2, 5, 2, 8)
PACKED = (torch.ones(4, 2, 8), torch.ones(6, 2, 8), torch.ones(6, 2, 8))
CACHE = (torch.ones(2, 1, 2, 8), torch.ones(4, 4, 2, 8), torch.ones(4, 4, 2, 8))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch calls nested tensors a prototype
    NESTED = torch.nested.nested_tensor([torch.ones(3, 4, 8), torch.ones(2, 4, 8)])
NAN, INF = float("nan"), float("inf")


def whole(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


def thd(**changes):
    given = {"layout": "thd", "cu_seqlens_q": whole(0, 1, 4), "cu_seqlens_k": whole(0, 2, 6)}
    return {name: value for name, value in {**given, **changes}.items() if value is not None}


def paged(**changes):
    given = {"block_table": torch.tensor([[0, 1], [2, 3]], dtype=torch.int32), "seq_lens": whole(8, 5)}
    return {name: value for name, value in {**given, **changes}.items() if value is not None}


# what is wrong: (q, k, v), arguments, words of the message
TABLE = {
    "q of three dims": ((Q[0], K, V), {}, ["q", "[3, 4, 8]", "4 dims", "bshd"]),
    "q is no tensor": (([[1.0]], K, V), {}, ["q", "list", "torch.Tensor"]),
    "v shorter than k": ((Q, K, V[:, :4]), {}, ["v", "[2, 4, 2, 8]", "[2, 5, 2]"]),
    "other batch": ((Q, K[:1], V[:1]), {}, ["k", "batch 1", "2"]),
    "other head_dim": ((Q, K[..., :4], V), {}, ["k", "head_dim 4", "8"]),
    "heads do not divide": ((Q, K.repeat(1, 1, 2, 1)[:, :, :3], V.repeat(1, 1, 2, 1)[:, :, :3]), {}, ["4", "3", "multiple"]),
    "no heads": ((Q[:, :, :0], K, V), {}, ["q", "at least 1 head"]),
    "no columns": ((Q[..., :0], K[..., :0], V), {}, ["head_dim", "at least 1"]),
    "q of whole numbers": ((Q.to(torch.int32), K, V), {}, ["q", "int32", "bfloat16"]),
    "k in another dtype": ((Q, K.half(), V), {}, ["k", "float16", "float32"]),
    "v in another dtype": ((Q, K, V.double()), {}, ["v", "float64", "float32"]),
    "k on another device": ((Q, K.to("meta"), V), {}, ["k", "meta", "cpu"]),
    "mask on another device": ((Q, K, V), {"attn_mask": torch.ones(3, 5, device="meta").bool()}, ["attn_mask", "meta", "cpu"]),
    "mask does not broadcast": ((Q, K, V), {"attn_mask": torch.ones(3, 4).bool()}, ["attn_mask", "[3, 4]", "[2, 4, 3, 5]"]),
    "mask per KV head": ((Q, K, V), {"attn_mask": torch.ones(2, 2, 3, 5).bool()}, ["attn_mask", "[2, 2, 3, 5]"]),
    "mask of one dim": ((Q, K, V), {"attn_mask": torch.ones(5).bool()}, ["attn_mask", "2 to 4 dims"]),
    "mask of five dims": ((Q, K, V), {"attn_mask": torch.ones(1, 2, 4, 3, 5).bool()}, ["attn_mask", "2 to 4 dims"]),
    "mask of whole numbers": ((Q, K, V), {"attn_mask": torch.ones(3, 5).long()}, ["attn_mask", "int64", "bool"]),
    "mask in half": ((Q, K, V), {"attn_mask": torch.ones(3, 5).half()}, ["attn_mask", "float16", "float32"]),
    "sinks per KV head": ((Q, K, V), {"sinks": torch.ones(2)}, ["sinks", "[2]", "[4]"]),
    "sinks in half": ((Q, K, V), {"sinks": torch.ones(4).half()}, ["sinks", "float16", "float32"]),
    "slopes of another batch": ((Q, K, V), {"alibi_slopes": torch.ones(3, 4)}, ["alibi_slopes", "[3, 4]", "[2, 4]"]),
    "softcap zero": ((Q, K, V), {"softcap": 0.0}, ["softcap", "0.0", "> 0"]),
    "softcap negative": ((Q, K, V), {"softcap": -3.0}, ["softcap", "-3.0"]),
    "softcap nan": ((Q, K, V), {"softcap": NAN}, ["softcap", "nan", "finite"]),
    "softcap inf": ((Q, K, V), {"softcap": INF}, ["softcap", "inf"]),
    "softcap a word": ((Q, K, V), {"softcap": "30"}, ["softcap", "'30'"]),
    "scale nan": ((Q, K, V), {"softmax_scale": NAN}, ["softmax_scale", "nan", "finite"]),
    "scale inf": ((Q, K, V), {"softmax_scale": INF}, ["softmax_scale", "inf"]),
    "window below -1": ((Q, K, V), {"window_left": -2}, ["window_left", "-2", "-1"]),
    "window a fraction": ((Q, K, V), {"window_right": 1.5}, ["window_right", "1.5"]),
    "dropout one": ((Q, K, V), {"dropout_p": 1.0}, ["dropout_p", "1.0", "[0, 1)"]),
    "dropout negative": ((Q, K, V), {"dropout_p": -0.1}, ["dropout_p", "-0.1"]),
    "unknown layout": ((Q, K, V), {"layout": "sbhd"}, ["layout", "sbhd", "bhsd"]),
    "unknown alignment": ((Q, K, V), {"causal_alignment": "left"}, ["causal_alignment", "left", "top_left"]),
    "unknown phase": ((Q, K, V), {"phase": "decoding"}, ["phase", "decoding", "decode"]),
    "unknown attn_type": ((Q, K, V), {"attn_type": "cross"}, ["attn_type", "cross", "encoder_decoder"]),
    "unknown graph level": ((Q, K, V), {"graph": "yes"}, ["graph", "yes", "uniform_decode"]),
    "causal is a number": ((Q, K, V), {"causal": 1}, ["causal", "1", "true or false"]),
    "unknown out_dtype": ((Q, K, V), {"out_dtype": "float31"}, ["out_dtype", "float31", "bfloat16"]),
    "out of another shape": ((Q, K, V), {"out": torch.zeros(2, 3, 4, 9)}, ["out", "[2, 3, 4, 9]", "[2, 3, 4, 8]"]),
    "out in another dtype": ((Q, K, V), {"out": torch.zeros(2, 3, 4, 8).half()}, ["out", "float16", "float32"]),
    "out expanded": ((Q, K, V), {"out": torch.zeros(1, 3, 4, 8).expand(2, 3, 4, 8)}, ["out", "strides", "own memory"]),
    "dense seq_lens too long": ((Q, K, V), {"seq_lens": whole(6, 5)}, ["seq_lens", "6", "5"]),
    "dense seq_lens negative": ((Q, K, V), {"seq_lens": whole(5, -1)}, ["seq_lens", "-1"]),
    "seq_lens in int64": ((Q, K, V), {"seq_lens": whole(5, 5, dtype=torch.int64)}, ["seq_lens", "int64", "int32"]),
    "seq_lens of another batch": ((Q, K, V), {"seq_lens": whole(5)}, ["seq_lens", "[1]", "[2]"]),
    "cu_seqlens of dense tensors": ((Q, K, V), {"cu_seqlens_k": whole(0, 5, 10)}, ["cu_seqlens_k", "thd"]),
    "thd without cu_seqlens_q": (PACKED, thd(cu_seqlens_q=None), ["cu_seqlens_q", "[batch + 1]"]),
    "thd without cu_seqlens_k": (PACKED, thd(cu_seqlens_k=None), ["cu_seqlens_k", "[batch + 1]"]),
    "cu_seqlens decrease": (PACKED, thd(cu_seqlens_k=whole(0, 4, 2)), ["cu_seqlens_k", "[4, 2]", "no decrease"]),
    "cu_seqlens start at one": (PACKED, thd(cu_seqlens_q=whole(1, 2, 4)), ["cu_seqlens_q", "1", "0"]),
    "cu_seqlens beyond the tokens": (PACKED, thd(cu_seqlens_q=whole(0, 1, 5)), ["cu_seqlens_q", "5", "4"]),
    "cu_seqlens in int64": (PACKED, thd(cu_seqlens_q=whole(0, 1, 4, dtype=torch.int64)), ["cu_seqlens_q", "int64", "int32"]),
    "cu_seqlens of another batch": (PACKED, thd(cu_seqlens_k=whole(0, 6)), ["cu_seqlens_k", "[2]", "[3]"]),
    "max_seqlen too short": (PACKED, thd(max_seqlen_q=2, max_seqlen_k=4), ["max_seqlen_q", "2", "3"]),
    "thd with seq_lens": (PACKED, thd(seq_lens=whole(2, 4)), ["seq_lens", "cu_seqlens_k"]),
    "table without seq_lens": (CACHE, paged(seq_lens=None), ["seq_lens", "block_table"]),
    "table with cu_seqlens_k": (CACHE, paged(cu_seqlens_k=whole(0, 8, 13)), ["cu_seqlens_k", "block_table"]),
    "seq_lens beyond the table": (CACHE, paged(seq_lens=whole(9, 5)), ["seq_lens", "9", "8"]),
    "page that is not there": (CACHE, paged(block_table=torch.tensor([[0, 4], [2, 3]], dtype=torch.int32)), ["block_table", "4", "3"]),
    "page below zero": (CACHE, paged(block_table=torch.tensor([[0, 1], [-1, 3]], dtype=torch.int32)), ["block_table", "-1"]),
    "table of one dim": (CACHE, paged(block_table=whole(0, 1)), ["block_table", "[2]", "max_pages"]),
    "table of another batch": (CACHE, paged(block_table=torch.tensor([[0, 1]], dtype=torch.int32)), ["block_table", "[1, 2]"]),
    "table in int64": (CACHE, paged(block_table=torch.tensor([[0, 1], [2, 3]])), ["block_table", "int64", "int32"]),
    "unknown kv_layout": (CACHE, paged(kv_layout="NDH"), ["kv_layout", "NDH", "HND"]),
    "fp8 without a scale": ((Q, K.to(torch.float8_e4m3fn), V), {}, ["k_descale", "None", "float8_e4m3fn", "pass k_descale: a float"]),
    "e4m3 alone": (tuple(x.to(torch.float8_e4m3fn) for x in (Q, K, V)), {}, ["q_descale", "pass q_descale, k_descale, v_descale: a float"]),
    "one of three scales": (tuple(x.to(torch.int8) for x in (Q, K, V)), {"q_descale": 1.0}, ["k_descale", "pass k_descale, v_descale:"]),
    "a scale for nothing": ((Q, K, V), {"v_descale": 0.5}, ["v_descale", "float32"]),
    "a scale in half": ((Q, K.to(torch.int8), V), {"k_descale": torch.ones(2).half()}, ["k_descale", "float16", "float32"]),
    "a scale of no shape": ((Q, K.to(torch.int8), V), {"k_descale": torch.ones(7)}, ["k_descale", "per_head", "[2]"]),
    "a granularity that does not fit": (
        (Q, K.to(torch.int8), V), {"k_descale": torch.ones(2), "k_granularity": "per_channel"}, ["k_descale", "[2, 8]"],
    ),
    "an unknown granularity": (
        (Q, K.to(torch.int8), V), {"k_descale": torch.ones(2), "k_granularity": "per_page"}, ["k_granularity", "per_page"],
    ),
    "blocks of another size": (
        (Q, K, V), {"block_mask": BlockMask(torch.ones(1, 1, 1, 1).bool(), 2)}, ["block_mask", "(1, 1, 1, 1)", "2, 3"],
    ),
    "mask as a list": ((Q, K, V), {"attn_mask": [[True] * 5] * 3}, ["attn_mask", "list", "torch.Tensor"]),
    "sinks as a list": ((Q, K, V), {"sinks": [0.0] * 4}, ["sinks", "list", "torch.Tensor"]),
    "slopes as a number": ((Q, K, V), {"alibi_slopes": 0.5}, ["alibi_slopes", "float", "torch.Tensor"]),
    "seq_lens as a list": ((Q, K, V), {"seq_lens": [5, 5]}, ["seq_lens", "list", "torch.Tensor"]),
    "cu_seqlens as a list": (PACKED, thd(cu_seqlens_q=[0, 1, 4]), ["cu_seqlens_q", "list", "torch.Tensor"]),
    "table as a list": (CACHE, paged(block_table=[[0, 1], [2, 3]]), ["block_table", "list", "torch.Tensor"]),
    "out as a list": ((Q, K, V), {"out": [1.0]}, ["out", "list", "torch.Tensor"]),
    "block mask as a tensor": ((Q, K, V), {"block_mask": torch.ones(3, 5).bool()}, ["block_mask", "Tensor", "BlockMask"]),
    "q sparse": ((Q.to_sparse(), K, V), {}, ["q", "sparse", "strided"]),
    "max_seqlen a word": (CACHE, paged(max_seqlen_k="8"), ["max_seqlen_k", "'8'", "whole number"]),
    "seed a fraction": ((Q, K, V), {"dropout_p": 0.5, "dropout_seed": 1.5}, ["dropout_seed", "1.5", "whole number"]),
    "blocks of no keys": (
        (Q, K.to(torch.int8), V), {"k_descale": torch.ones(2, 2, 3), "scale_block": 0}, ["scale_block", "0", ">= 1"],
    ),
    "seed below zero": ((Q, K, V), {"dropout_p": 0.5, "dropout_seed": -1}, ["dropout_seed", "-1", "2**64"]),
    "seed of 65 bits": ((Q, K, V), {"dropout_p": 0.5, "dropout_seed": 2**64}, ["dropout_seed", "2**64"]),
    "q nested": ((NESTED, K, V), {}, ["q", "nested", "thd"]),
    "mask nested": ((Q, K, V), {"attn_mask": NESTED}, ["attn_mask", "nested"]),
    "q of numpy": ((Q.numpy(), K, V), {}, ["q", "ndarray", "torch.Tensor"]),
    "cu_seqlens_q of no dim": (PACKED, thd(cu_seqlens_q=torch.tensor(3, dtype=torch.int32)), ["cu_seqlens_q", "[]"]),
    "cu_seqlens_k of no dim": (PACKED, thd(cu_seqlens_k=torch.tensor(3, dtype=torch.int32)), ["cu_seqlens_k", "[]"]),
    "cu_seqlens on another device": (PACKED, thd(cu_seqlens_q=whole(0, 1, 4).to("meta")), ["cu_seqlens_q", "meta"]),
    "one scale on another device": (
        (Q, K.to(torch.int8), V), {"k_descale": torch.ones((), device="meta")}, ["k_descale", "meta", "cpu"],
    ),
    "out wants a gradient": ((Q, K, V), {"out": torch.zeros(2, 3, 4, 8, requires_grad=True)}, ["out", "gradient"]),
    "slopes want a gradient": (
        (Q, K, V), {"alibi_slopes": torch.ones(4, requires_grad=True)}, ["alibi_slopes", "not differentiable"],
    ),
    "a scale wants a gradient": (
        (Q, K.to(torch.int8), V), {"k_descale": torch.ones((), requires_grad=True)}, ["k_descale", "not differentiable"],
    ),
    "validate a word": ((Q, K, V), {"validate": "yes"}, ["validate", "yes", "true or false"]),
    "backend a number": ((Q, K, V), {"backend": 5}, ["backend", "5", "name"]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("tensors", "arguments", "words"), TABLE.values(), ids=[name.replace(" ", "-") for name in TABLE]
)
def test_bad_input_is_a_request_error(tensors, arguments, words):
    """Field, value and what is allowed stand in the message; no backend was looked at and nothing was written."""
    out = arguments.get("out")
    copies = [x.clone() for x in (*tensors, out) if isinstance(x, torch.Tensor)]
    before = cache_info(), launches()
    with pytest.raises(RequestError) as caught:
        attention(*tensors, **arguments)
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert (cache_info(), launches()) == before
    for tensor, copy in zip([x for x in (*tensors, out) if isinstance(x, torch.Tensor)], copies, strict=True):
        assert tensor.is_meta or tensor.is_sparse or tensor.is_nested or torch.equal(tensor.double(), copy.double())


@pytest.mark.parametrize("name", ["thd", "paged"])
@pytest.mark.parametrize("first", [True, False], ids=["cold", "warm"])
def test_contents_are_checked_on_every_call(name, first):
    """Lengths that are wrong are found on the first call and on one whose shape was bound before."""
    tensors, good, bad, field = {
        "thd": (PACKED, thd(), thd(cu_seqlens_k=whole(0, 4, 2), max_seqlen_q=3, max_seqlen_k=4), "cu_seqlens_k"),
        "paged": (CACHE, paged(), paged(seq_lens=whole(9, 5)), "seq_lens"),
    }[name]
    if not first:
        attention(*tensors, **good)
    with pytest.raises(RequestError, match=field):
        attention(*tensors, **bad)
    attention(*tensors, **good)


def test_a_bad_call_is_a_request_error_even_where_no_backend_would_fit():
    """The call is judged before the backend: a forced one that does not do packed tensors is not to blame."""
    with pytest.raises(RequestError, match="cu_seqlens_k"):
        attention(*PACKED, **thd(cu_seqlens_k=whole(0, 4, 2)), backend="sdpa_cpu_flash")


LOOKALIKES = {  # a legal value, and one that Python calls equal, or that changes nothing
    "causal": (True, 1), "window_left": (1, True), "window_right": (-1, -1.0), "softmax_scale": (1.0, True),
    "softcap": (1.0, True), "return_lse": (False, 0), "deterministic": (False, 0), "batch_invariant": (False, 0.0),
    "nan_safe": (False, 0), "validate": (False, 0), "dropout_p": (0.0, False), "dropout_seed": (None, "x"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKALIKES)
@pytest.mark.parametrize("how", ["cold", "warm", "warm with a mask", "loaded"])
def test_legality_does_not_depend_on_what_was_asked_before(name, how):
    """A value that is no legal one is refused, though it equals that of a call whose kernel is bound."""
    good, bad = LOOKALIKES[name]
    more = {"attn_mask": torch.ones(3, 5).bool()} if "mask" in how else {}
    call = select(Request.from_tensors(Q, K, V), backend="eager").load() if how == "loaded" else attention
    if how == "cold":
        clear_cache()
    else:
        for _ in range(2):
            call(Q, K, V, **more, **{name: good})
    with pytest.raises(RequestError, match=name):
        call(Q, K, V, **more, **{name: bad})


@pytest.mark.parametrize("beyond", [2**31, 2**63 - 1, 2**64], ids=["int32", "int64", "no int at all"])
@pytest.mark.parametrize("backend", ["eager", "sdpa_math", "sdpa_cpu_flash"])
def test_a_window_of_any_size_hides_nothing_beyond_the_keys(backend, beyond):
    """A number that no kernel could hold is the window that sees every key."""
    q, k, v = (torch.randn(x.shape, generator=torch.Generator().manual_seed(1)) for x in (Q, K, V))
    want = attention(q, k, v, backend=backend)
    lens = {"seq_lens": whole(5, 5)}
    for more in ({}, lens):
        got = attention(q, k, v, backend=backend, window_left=beyond, window_right=beyond, **more)
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [({"k_descale": 1.0, "v_descale": 1.0}, "quantised tensors"), (None, "a paged cache")],
    ids=["quantised", "paged"],
)
def test_gradients_that_nobody_has_are_named(arguments, word):
    """A call that fails for its gradients alone says so, and what to do."""
    tensors, given = (CACHE, paged()) if arguments is None else ((Q, K.to(torch.int8), V.to(torch.int8)), arguments)
    with pytest.raises(NoBackendError, match=f"no backend has a backward over {word}.*no_grad"):
        attention(tensors[0].clone().requires_grad_(), *tensors[1:], **given)


def test_a_seed_is_checked_on_every_call():
    """A seed that is none is found also where the shape was seen before."""
    attention(Q, K, V, dropout_p=0.5, dropout_seed=1)
    with pytest.raises(RequestError, match="dropout_seed"):
        attention(Q, K, V, dropout_p=0.5, dropout_seed=1.5)


def test_an_unknown_argument_is_pythons_own_error():
    """A misspelt argument never reaches a backend."""
    with pytest.raises(TypeError, match="soft_cap"):
        attention(Q, K, V, soft_cap=3.0)


def test_a_policy_as_a_dict_is_a_policy_error():
    """A policy is a Policy: the call and `select` say so alike."""
    request = Request.from_tensors(Q, K, V)
    for ask in (lambda given: attention(Q, K, V, policy=given), lambda given: select(request, policy=given)):
        with pytest.raises(PolicyError, match=r"dict.*attn_backends\.Policy"):
            ask({"only": ["eager"]})


@pytest.mark.parametrize(
    ("arguments", "word"),
    [({"backend": ["eager"]}, "backend"), ({"device": 5}, "device"), ({"environment": {}}, "environment")],
    ids=["backend", "device", "environment"],
)
def test_select_says_which_argument_is_of_another_kind(arguments, word):
    """Hashable or not, an argument of the wrong kind is a RequestError that names it."""
    with pytest.raises(RequestError, match=word):
        select(Request.from_tensors(Q, K, V), **arguments)
    with pytest.raises(RequestError, match="request"):
        select({"dtype": "float32"})


def test_an_unknown_backend_lists_the_nearest():
    """A misspelt backend is answered with names."""
    with pytest.raises(UnknownBackendError, match=r"eagr.*eager"):
        attention(Q, K, V, backend="eagr")


def test_a_forced_backend_that_does_not_fit_is_never_run():
    """It raises with reasons, values, who would fit and what would help; out is untouched and nothing ran."""
    out, before = torch.full((2, 3, 4, 8), 7.0), launches()
    with pytest.raises(UnfitBackendError) as caught:
        attention(Q, K, V, softcap=2.0, backend="sdpa_cpu_flash", out=out)
    assert all(word in str(caught.value) for word in ("sdpa_cpu_flash", "softcap", "eager", "softcap true -> false"))
    assert caught.value.decision.backend is None
    assert torch.equal(out, torch.full((2, 3, 4, 8), 7.0))
    assert launches() == before


def test_nobody_fits():
    """Nothing allowed serves the call: NoBackendError with the explanation, out untouched."""
    out = torch.full((2, 3, 4, 8), 7.0)
    with pytest.raises(NoBackendError, match="softcap") as caught:
        attention(Q, K, V, softcap=2.0, policy=Policy(only=["sdpa_cpu_flash"]), out=out)
    assert caught.value.decision.candidate("eager").reasons[0].code == "not_in_only"
    assert torch.equal(out, torch.full((2, 3, 4, 8), 7.0))
