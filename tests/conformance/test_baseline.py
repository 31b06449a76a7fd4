"""The baseline is attention, rounded as a naive implementation rounds; and good implementations pass beside it."""

from __future__ import annotations

import itertools

import pytest
import torch

import attn_backends
from attn_backends import BlockMask
from attn_backends.conformance.baseline import baseline, baseline_gradients, judged_dtype
from attn_backends.conformance.oracle import oracle, oracle_gradients
from attn_backends.conformance.rounding_model import expected_errors
from attn_backends.conformance.tolerance import judge


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Tensors here are tiny; more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


INF = float("inf")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
B, SQ, SK, HQ, HKV, D, DV = 2, 19, 33, 4, 2, 24, 16


def generator(seed):
    return torch.Generator().manual_seed(seed)


def tensors(dtype, seed=0, *, sq=SQ, sk=SK, spread=1.0, offset=0.0):
    """q, k, v in bshd; v has its own spread and offset."""
    g = generator(seed)
    q, k = torch.randn(B, sq, HQ, D, generator=g), torch.randn(B, sk, HKV, D, generator=g)
    v = torch.randn(B, sk, HKV, DV, generator=g) * spread + offset
    return [t.to(dtype) for t in (q, k, v)]


def upstream(dtype, sq=SQ):
    g = generator(9)
    return torch.randn(B, sq, HQ, DV, generator=g).to(dtype), torch.randn(B, HQ, sq, generator=g)


def mask(*shape):
    return torch.rand(shape, generator=generator(7)) > 0.4


FEATURES = {
    "plain": {},
    "causal": {"causal": True},
    "top-left": {"causal": True, "causal_alignment": "top_left"},
    "window": {"causal": True, "window_left": 5},
    "scale": {"softmax_scale": 0.31},
    "softcap": {"softcap": 2.0, "causal": True},
    "sinks": {"sinks": torch.tensor([0.3, -INF, 2.0, -1.0]), "window_left": 3, "window_right": 0},
    "alibi": {"alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 0.0])},
    "bool-mask": {"attn_mask": mask(B, 1, SQ, SK)},
    "float-mask": {"attn_mask": torch.where(mask(HQ, SQ, SK), torch.randn(HQ, SQ, SK, generator=generator(8)), -INF)},
    "shared-mask": {
        "attn_mask": torch.where(mask(B, 1, 1, SK), torch.randn(B, 1, 1, SK, generator=generator(8)), -INF)
    },
    "blocks": {"block_mask": BlockMask(mask(B, HQ, 5, 5), (4, 7)), "causal": True},
    "dropout": {"dropout_p": 0.3, "dropout_seed": 5},
}
FEATURE = pytest.mark.parametrize("given", [pytest.param(given, id=name) for name, given in FEATURES.items()])


# -- the baseline is attention -----------------------------------------------------------------------------------------


@FEATURE
def test_in_float64_the_baseline_is_the_oracle(given):
    """Without rounding to speak of, the naive formulas, forward and backward, are the exact ones."""
    q, k, v = tensors(torch.float64)
    d_out, d_lse = upstream(torch.float64)
    exact, rough = oracle(q, k, v, **given), baseline(q, k, v, **given)
    torch.testing.assert_close(rough.out, exact.out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(rough.lse, exact.lse, rtol=1e-12, atol=1e-12)
    found = baseline_gradients(q, k, v, d_out, d_lse.double(), **given)
    for name, grad in oracle_gradients(q, k, v, d_out, d_lse, **given).items():
        torch.testing.assert_close(
            found[name].double(), grad, rtol=1e-6, atol=1e-6 if name in ("bias", "sinks") else 1e-11
        )
    assert set(found) == set(oracle_gradients(q, k, v, d_out, d_lse, **given))


def packed(dtype):
    """thd with zero lengths on both sides and a tail."""
    q, k, v = (t.flatten(0, 1) for t in tensors(dtype, sk=SQ))
    ends = {"cu_seqlens_q": [0, 7, 7, 20, 38], "cu_seqlens_k": [0, 11, 30, 30, 37]}
    return q, k, v, {"layout": "thd", **{name: torch.tensor(end, dtype=torch.int32) for name, end in ends.items()}}


def test_packed_gradients_are_the_oracles():
    """thd in float64, LSE included."""
    q, k, v, given = packed(torch.float64)
    d_out, d_lse = torch.ones(38, HQ, DV), torch.ones(HQ, 38)
    found = baseline_gradients(q, k, v, d_out, d_lse, causal=True, **given)
    for name, grad in oracle_gradients(q, k, v, d_out, d_lse, causal=True, **given).items():
        torch.testing.assert_close(found[name], grad, rtol=1e-11, atol=1e-11)


def quantised_cache(dtype):
    """A paged HND cache of e4m3 keys and int8 values."""
    q, k, v = tensors(dtype, sk=32)
    table = torch.tensor([[6, 1, 3, -1], [0, 7, 2, 5]], dtype=torch.int32)
    k8 = (k.float() * 16).to(torch.float8_e4m3fn).reshape(2, 4, 8, HKV, D)
    v8 = (v.float() * 30).round().clamp(-128, 127).to(torch.int8).reshape(2, 4, 8, HKV, DV)
    pages_k, pages_v = torch.zeros(8, 8, HKV, D).to(k8.dtype), torch.zeros(8, 8, HKV, DV).to(v8.dtype)
    for b, position in itertools.product(range(2), range(4)):
        if table[b, position] >= 0:
            pages_k[table[b, position]], pages_v[table[b, position]] = k8[b, position], v8[b, position]
    given = {
        "block_table": table, "seq_lens": torch.tensor([21, 32], dtype=torch.int32), "kv_layout": "HND",
        "k_descale": 1 / 16, "v_descale": torch.tensor([1 / 30, 1 / 20]),
    }  # fmt: skip
    return q, pages_k.transpose(1, 2), pages_v.transpose(1, 2), given


@DTYPE
def test_quantised_pages_are_read_in_the_dtype_of_q(dtype):
    """Baseline and eager pass over a quantised cache."""
    q, k, v, given = quantised_cache(dtype)
    exact, rough = oracle(q, k, v, causal=True, **given), baseline(q, k, v, causal=True, **given)
    got = attn_backends.attention(q, k, v, causal=True, backend="eager", **given)
    sd = expected_errors(q, k, v, causal=True, **given)["out"]
    for result in (rough.out, got):
        verdict = judge(result, exact.out, rough.out, dtype, value_rms=exact.value_rms, expected=sd)
        assert verdict.ok, verdict.message


@pytest.mark.parametrize(
    ("q", "out_dtype", "expected"),
    [
        (torch.float32, None, torch.float32),
        (torch.float8_e4m3fn, None, torch.bfloat16),
        (torch.int8, torch.float32, torch.bfloat16),
        (torch.float32, torch.float16, torch.float16),
        (torch.bfloat16, torch.float32, torch.bfloat16),
    ],
)
def test_a_call_is_judged_by_its_coarsest_dtype(q, out_dtype, expected):
    """q's, bfloat16 for codes, or the output's where that is coarser."""
    assert judged_dtype(torch.zeros(1).to(q), out_dtype) == expected


@DTYPE
def test_the_baseline_rounds_like_its_dtype(dtype):
    """It answers in the dtype, with an error of the size of u and not of its square or root."""
    q, k, v = tensors(dtype)
    exact, rough = oracle(q, k, v), baseline(q, k, v)
    u = torch.finfo(dtype).eps / 2
    error = float((rough.out - exact.out).square().mean().sqrt()) / float(exact.out.square().mean().sqrt())
    assert rough.out.dtype == dtype
    assert rough.lse.dtype == torch.float32
    assert u / 20 < error < 20 * u


def test_out_dtype_is_the_outputs():
    """float32 out of bfloat16 inputs."""
    assert baseline(*tensors(torch.bfloat16), out_dtype="float32").out.dtype == torch.float32


def test_switches_of_the_process_do_not_reach_the_baseline():
    """Neither autocast nor a low matmul precision changes a bit, and both are as they were afterwards."""
    q, k, v = tensors(torch.float32)
    plain, grads = baseline(q, k, v), baseline_gradients(q, k, v, torch.ones(B, SQ, HQ, DV))
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            again, same = baseline(q, k, v), baseline_gradients(q, k, v, torch.ones(B, SQ, HQ, DV))
            assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
            assert torch.equal(oracle(q, k, v).out, oracle(*(t.double() for t in (q, k, v))).out)
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before
    assert torch.equal(again.out, plain.out)
    assert all(torch.equal(same[name], grads[name]) for name in "qkv")


# -- good implementations pass -----------------------------------------------------------------------------------------

VALUES = {"ordinary": (1.0, 0.0), "small": (0.02, 0.0), "large": (32.0, 0.0), "offset": (1.0, 5.0)}


@DTYPE
@FEATURE
def test_the_baseline_passes_beside_itself(given, dtype):
    """Out and LSE, by every rule."""
    q, k, v = tensors(dtype)
    q = q * 0.5  # scores of a naive implementation are as good as its dtype only while they are small
    exact, rough = oracle(q, k, v, **given), baseline(q, k, v, **given)
    out = judge(rough.out, exact.out, rough.out, dtype, value_rms=exact.value_rms)
    assert out.ok, out.message
    if dtype != torch.bfloat16:
        lse = judge(rough.lse, exact.lse, None, dtype, "lse")
        assert lse.ok, lse.message


@DTYPE
@pytest.mark.parametrize("values", VALUES)
@FEATURE
def test_eager_passes(given, values, dtype):
    """Out, LSE and every gradient of the reference backend, over features, dtypes and sizes of values."""
    q, k, v = tensors(dtype, seed=3, spread=VALUES[values][0], offset=VALUES[values][1])
    d_out, d_lse = upstream(dtype)
    given = dict(given)
    leaves = {"q": q.requires_grad_(), "k": k.requires_grad_(), "v": v.requires_grad_()}
    for name, key in (("bias", "attn_mask"), ("sinks", "sinks")):
        if key in given and given[key].is_floating_point():
            leaves[name] = given[key] = given[key].clone().requires_grad_()
    out, lse = attn_backends.attention(q, k, v, return_lse=True, backend="eager", **given)
    grads = torch.autograd.grad([out, lse], list(leaves.values()), [d_out, d_lse])
    exact, rough = oracle(q, k, v, **given), baseline(q, k, v, **given)
    sd = expected_errors(q, k, v, d_out, d_lse, **given)
    right = oracle_gradients(q, k, v, d_out, d_lse, **given)
    naive = baseline_gradients(q, k, v, d_out, d_lse, **given)
    verdicts = {
        "out": judge(out, exact.out, rough.out, dtype, value_rms=exact.value_rms, expected=sd["out"]),
        "lse": judge(lse, exact.lse, None, dtype, "lse"),
    }
    for name, grad in zip(leaves, grads, strict=True):
        verdicts[name] = judge(grad, right[name], naive[name], dtype, "grad", expected=sd[name])
    assert all(verdict.ok for verdict in verdicts.values()), {name: str(v.message) for name, v in verdicts.items()}


@DTYPE
@pytest.mark.parametrize("spread", [0.02, 1.0, 8.0])
def test_the_rounding_model_expects_what_happens(dtype, spread):
    """Measured errors of eager lie between a fiftieth of the expected size and its double, tensor by tensor."""
    q, k, v = tensors(dtype, seed=4)
    q = (q * spread).requires_grad_()
    leaves = (q, k.requires_grad_(), v.requires_grad_())
    d_out, _ = upstream(dtype)
    out = attn_backends.attention(*leaves, causal=True, backend="eager")
    grads = torch.autograd.grad(out, leaves, d_out)
    exact, right = oracle(*leaves, causal=True), oracle_gradients(*leaves, d_out, causal=True)
    sd = expected_errors(*leaves, d_out, causal=True)
    u = torch.finfo(dtype).eps / 2
    for name, got in zip(("out", *"qkv"), (out, *grads), strict=True):
        truth = exact.out if name == "out" else right[name]
        error = float((got.detach() - truth).square().mean().sqrt())
        expected = float(sd[name].square().mean().sqrt()) + u * float(truth.square().mean().sqrt())
        assert expected / 50 < error < 2 * expected, name


def test_the_baseline_rounds_its_scores():
    """1 * 256 + 1 * 1 has no bfloat16: the naive score, and so the LSE, is 256, where the exact one is 257."""
    q, k, v = torch.tensor([1.0, 1.0]), torch.tensor([256.0, 1.0]), torch.tensor([1.0])
    given = {"softmax_scale": 1.0}
    call = [t.to(torch.bfloat16).view(1, 1, 1, -1) for t in (q, k, v)]
    assert float(baseline(*call, **given).lse) == 256.0
    assert float(oracle(*call, **given).lse) == 257.0


def test_what_no_row_sees_reaches_neither_baseline_nor_model():
    """NaN at a key that the mask hides from every row: bit-equal results, gradients and expectations."""
    given = {"attn_mask": torch.tensor([[index not in (2, 5) for index in range(SK)]]), "causal": True}
    d_out, _ = upstream(torch.float32)
    found = []
    for poison in (0.0, float("nan")):
        q, k, v = tensors(torch.float32)
        k[:, [2, 5]], v[:, [2, 5]] = poison, poison
        rough = baseline(q, k, v, **given)
        found.append(
            {
                "out": rough.out, "lse": rough.lse, **baseline_gradients(q, k, v, d_out, **given),
                **{f"sd {name}": sd for name, sd in expected_errors(q, k, v, d_out, **given).items()},
            }
        )  # fmt: skip
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_gradients_of_a_shared_page_add_up():
    """Two sequences read one page of a dense cache."""
    q, k, v = tensors(torch.float64)
    pages_k, pages_v = k.flatten(0, 1)[:32].reshape(4, 8, HKV, D), v.flatten(0, 1)[:32].reshape(4, 8, HKV, DV)
    given = {
        "block_table": torch.tensor([[2, 1], [2, 3]], dtype=torch.int32),
        "seq_lens": torch.tensor([11, 16], dtype=torch.int32),
    }
    d_out, _ = upstream(torch.float64)
    found = baseline_gradients(q, pages_k, pages_v, d_out, **given)
    for name, grad in oracle_gradients(q, pages_k, pages_v, d_out, **given).items():
        torch.testing.assert_close(found[name], grad, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("seed", range(4))
def test_float32_scores_that_decide_alone_are_judged_fairly(seed):
    """Scores of a hundred: rows hang on one weight, whose error a single baseline hits or misses by luck."""
    g = generator(seed)
    q, k = torch.randn(2, 17, 4, 40, generator=g) * 4, torch.randn(2, 200, 2, 40, generator=g) * 4
    v, d_out = torch.randn(2, 200, 2, 24, generator=g) + seed % 2, torch.randn(2, 17, 4, 24, generator=g)
    leaves = tuple(t.requires_grad_() for t in (q, k, v))
    out = attn_backends.attention(*leaves, backend="eager")
    grads = torch.autograd.grad(out, leaves, d_out)
    exact, rough, sd = oracle(*leaves), baseline(*leaves), expected_errors(*leaves, d_out)
    right, naive = oracle_gradients(*leaves, d_out), baseline_gradients(*leaves, d_out)
    verdict = judge(out, exact.out, rough.out, torch.float32, value_rms=exact.value_rms, expected=sd["out"])
    assert verdict.ok, verdict.message
    for name, grad in zip("qkv", grads, strict=True):
        verdict = judge(grad, right[name], naive[name], torch.float32, "grad", expected=sd[name])
        assert verdict.ok, (name, verdict.message)


def test_huge_biases_do_not_make_everything_right():
    """Under the lowest finite float32 on every key, the mean is right and a single key is not."""
    q, k, v = torch.zeros(1, 1, 1, 8), torch.ones(1, 6, 1, 8), torch.arange(6.0).view(1, 6, 1, 1).expand(1, 6, 1, 4)
    given = {"attn_mask": torch.full((1, 6), torch.finfo(torch.float32).min)}
    exact, rough, sd = oracle(q, k, v, **given), baseline(q, k, v, **given), expected_errors(q, k, v, **given)["out"]
    assert exact.out.unique().tolist() == [2.5]
    for number, ok in ((2.5, True), (3.5, False), (0.0, False)):
        got = torch.full((1, 1, 1, 4), number)
        verdict = judge(got, exact.out, rough.out, torch.float32, value_rms=exact.value_rms, expected=sd)
        assert verdict.ok is ok, verdict.message
