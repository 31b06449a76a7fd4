"""The judge: each rule at its bound, references that are at fault, and known mistakes that must not pass."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from attn_backends.conformance.baseline import baseline, baseline_gradients
from attn_backends.conformance.oracle import oracle, oracle_gradients
from attn_backends.conformance.rounding_model import expected_errors
from attn_backends.conformance.tolerance import SPEC_1_0, BadReferenceError, judge


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Tensors here are tiny; more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


INF, NAN = math.inf, math.nan
DTYPE = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16], ids=lambda dtype: str(dtype).removeprefix("torch.")
)
U = torch.finfo(torch.float16).eps / 2


def f64(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def out(got, exact, base, **more):
    return judge(got, exact, base, torch.float16, value_rms=more.pop("value_rms", 1e9), **more)


# -- each rule ---------------------------------------------------------------------------------------------------------

EXACT = f64([1.0, 2.0, 3.0, 4.0], [0.5, 0.5, 0.5, 0.5])
NOISE = f64([1e-2, 0.0, 0.0, 0.0], [0.0, 1e-3, 0.0, 0.0])


def test_the_exact_result_is_right():
    """Every ratio is 0."""
    verdict = out(EXACT, EXACT, EXACT + NOISE)
    assert verdict.ok
    assert verdict.rule is None
    assert set(verdict.ratios) == {"finite", "empty", "element", "row", "whole", "absolute"}
    assert not any(verdict.ratios.values())


@pytest.mark.parametrize(
    ("rule", "place", "allowed"),
    [
        ("element", (1, 0), 2 * 1e-2 + U * 0.5 + 1e-6),
        ("row", (1,), 3 * 1e-3 / 2),  # rms over four columns
        ("whole", (), 1.5 * float(NOISE.square().mean().sqrt()) + U / 2 * float(EXACT.square().mean().sqrt())),
    ],
)
def test_a_rule_holds_up_to_its_bound(rule, place, allowed):
    """Ratio 0.999 just inside, 1.001 just outside, by the formula of the spec."""
    for factor in (0.999, 1.001):
        error = torch.zeros_like(EXACT)
        error[place] = factor * allowed  # an element, a row, or all of it
        assert out(EXACT + error, EXACT, EXACT + NOISE).ratios[rule] == pytest.approx(factor, rel=1e-9)


@pytest.mark.parametrize(("what", "factors"), [("out", (2, 3, 1.5)), ("grad", (3, 4, 2))])
def test_gradients_have_factors_of_their_own(what, factors):
    """3, 4, 2 for 2, 3, 1.5."""
    error = torch.full_like(EXACT, 1e-3)
    verdict = judge(EXACT + error, EXACT, EXACT + NOISE, torch.float16, what, value_rms=1e9)
    element, row, whole = factors
    rms, size = float(NOISE.square().mean().sqrt()), float(EXACT.square().mean().sqrt())
    assert verdict.ratios["element"] == pytest.approx(1e-3 / (element * 1e-2 + U * 0.5 + 1e-6))
    assert verdict.ratios["row"] == pytest.approx(1e-3 / (row * max(1e-3 / 2, U * 0.5)))
    assert verdict.ratios["whole"] == pytest.approx(1e-3 / (whole * rms + U / 2 * size))


def test_the_absolute_bound_follows_the_values():
    """8 u rms(v), row by row, whatever the baseline did."""
    base = EXACT + 1.0  # a baseline that allows nearly anything
    error = f64([0.0] * 4, [8 * U] * 4)
    assert out(EXACT + 0.999 * error, EXACT, base, value_rms=1.0).ok
    verdict = out(EXACT + 1.001 * error, EXACT, base, value_rms=1.0)
    assert verdict.rule == "absolute"
    assert verdict.worst == (1,)


def test_what_rounding_is_expected_to_cost_is_allowed():
    """A baseline that was right by luck does not condemn a row; three expected deviations do."""
    expected = torch.full_like(EXACT, 1e-2)
    assert not out(EXACT + 2e-2, EXACT, EXACT).ok
    assert judge(EXACT + 2.9e-2, EXACT, EXACT, torch.float16, value_rms=0.0, expected=expected).ratios["row"] < 1
    verdict = judge(EXACT + 3.1e-2, EXACT, EXACT, torch.float16, value_rms=0.0, expected=expected)
    assert verdict.ratios["row"] > 1
    assert verdict.ratios["absolute"] > 1


def test_the_lse_has_a_bound_of_its_own():
    """1e-3 absolute and relative, infinities where they belong."""
    exact = f64([-INF, 0.0, 100.0])
    assert judge(exact + f64([0.0, 9e-4, 0.1]), exact, None, torch.bfloat16, "lse").ok
    assert judge(exact + f64([0.0, 1.1e-3, 0.0]), exact, None, torch.bfloat16, "lse").rule == "lse"
    assert judge(f64([-1e30, 0.0, 100.0]), exact, None, torch.bfloat16, "lse").rule == "finite"
    assert judge(f64([INF, 0.0, 100.0]), exact, None, torch.bfloat16, "lse").rule == "finite"


@pytest.mark.parametrize("wrong", [NAN, INF, -INF])
@pytest.mark.parametrize("what", ["out", "grad"])
def test_what_is_finite_must_be_finite(what, wrong):
    """However wide the baseline's error is; the place is named."""
    got = EXACT.clone()
    got[1, 2] = wrong
    verdict = judge(got, EXACT, EXACT + 100.0, torch.float16, what, value_rms=1e9)
    assert not verdict.ok
    assert verdict.rule == "finite"
    assert verdict.worst == (1, 2)


def test_an_infinity_must_be_that_infinity():
    """Same sign, same place; the rest of its row is still judged."""
    exact = f64([INF, 1.0], [-INF, 1.0])
    assert out(exact, exact, exact).ok
    assert out(-exact, exact, exact).rule == "finite"
    assert out(exact + f64([0.0, 0.5], [0.0, 0.0]), exact, exact).rule == "element"


def test_an_empty_row_is_exactly_zero():
    """1e-30 is not; -0.0 is; gradients need not be exact."""
    exact, base = f64([0.0, 0.0], [1.0, 1.0]), f64([0.1, 0.1], [1.0, 1.0])
    assert out(f64([0.0, -0.0], [1.0, 1.0]), exact, base).ok
    verdict = out(f64([0.0, 1e-30], [1.0, 1.0]), exact, base)
    assert verdict.rule == "empty"
    assert verdict.worst == (0, 1)
    assert judge(f64([0.0, 1e-30], [1.0, 1.0]), exact, base, torch.float16, "grad").ok


def test_another_shape_is_wrong_and_not_an_exception():
    """A transposed output is a finding."""
    verdict = out(EXACT.mT, EXACT, EXACT)
    assert (verdict.ok, verdict.rule) == (False, "shape")
    assert "[4, 2]" in verdict.message


@pytest.mark.parametrize(
    ("exact", "base", "match"),
    [
        (EXACT * NAN, EXACT, "NaN"),
        (EXACT, EXACT * NAN, "NaN"),
        (EXACT, EXACT * INF, "overflows"),
        (EXACT, None, "baseline"),
        (EXACT, EXACT[:1], "shape"),
    ],
)
def test_a_reference_at_fault_raises(exact, base, match):
    """A test that cannot judge does not pass and does not blame the backend."""
    with pytest.raises(BadReferenceError, match=match):
        out(EXACT, exact, base)


def test_an_output_needs_the_size_of_its_values():
    """Forgetting it would drop a rule in silence."""
    with pytest.raises(BadReferenceError, match="value_rms"):
        judge(EXACT, EXACT, EXACT, torch.float16)


def test_a_message_says_what_and_where():
    """Rule, measured, allowed, place and numbers, in one line."""
    got = EXACT.clone()
    got[0, 1] = 2.5
    message = out(got, EXACT, EXACT).message
    assert message.startswith("element: 0.5 where 0.000978 is allowed, at (0, 1)")
    assert "got 2.5, exact 2" in message
    assert "\n" not in message


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), ()])
def test_nothing_and_scalars_are_judged(shape):
    """Empty tensors are right; a scalar counts as one row."""
    exact = torch.full(shape, 2.0, dtype=torch.float64)
    assert out(exact, exact, exact).ok
    assert out(exact + 1, exact, exact).ok == (0 in shape)


def test_the_constants_can_be_replayed():
    """Recorded ratios scale with the constants, so that old reports answer for new ones."""
    half = dataclasses.replace(SPEC_1_0, row=1.5)
    got = EXACT + 1e-4
    ratios = [out(got, EXACT, EXACT + NOISE, constants=c).ratios["row"] for c in (SPEC_1_0, half)]
    assert ratios[1] == pytest.approx(2 * ratios[0])


# -- known mistakes ----------------------------------------------------------------------------------------------------

CAUSAL_CASE = {"causal": True, "softcap": 30.0}
WINDOW_CASE = {"causal": True, "window_left": 16}
SHAPES = {"129x65": (129, 65, CAUSAL_CASE), "17x200": (17, 200, WINDOW_CASE)}


def nasty(name, dtype):
    """The two cases of the contract: D 40, GQA 4 over 2, batch 2, Sq and Sk apart."""
    sq, sk, given = SHAPES[name]
    g = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, sq, 4, 40, generator=g), torch.randn(2, sk, 2, 40, generator=g)
    v = torch.randn(2, sk, 2, 24, generator=g)
    return *((t.to(dtype)) for t in (2 * q, k, v)), dict(given)


def references(q, k, v, given):
    exact = oracle(q, k, v, **given)
    return exact, baseline(q, k, v, **given), expected_errors(q, k, v, **given)["out"]


def wrong_gqa(q, k, v, given):
    """Head h reads KV head h modulo Hkv."""
    order = torch.tensor([0, 2, 1, 3])
    return oracle(q[:, :, order], k, v, **given).out[:, :, order]


MISTAKES = {
    "window-one-too-wide": ("17x200", lambda q, k, v, g: oracle(q, k, v, **{**g, "window_left": 17}).out),
    "window-one-too-narrow": ("17x200", lambda q, k, v, g: oracle(q, k, v, **{**g, "window_left": 15}).out),
    "window-dropped": ("17x200", lambda q, k, v, g: oracle(q, k, v, causal=True).out),
    "scale-dropped": ("17x200", lambda q, k, v, g: oracle(q, k, v, softmax_scale=1.0, **g).out),
    "scale-of-padded-width": ("129x65", lambda q, k, v, g: oracle(q, k, v, softmax_scale=64**-0.5, **g).out),
    "top-left": ("17x200", lambda q, k, v, g: oracle(q, k, v, causal_alignment="top_left", **g).out),
    "top-left-tall": ("129x65", lambda q, k, v, g: oracle(q, k, v, causal_alignment="top_left", **g).out),
    "mask-dropped": ("129x65", lambda q, k, v, g: oracle(q, k, v, softcap=30.0).out),
    "softcap-dropped": ("129x65", lambda q, k, v, g: oracle(q, k, v, causal=True).out),
    "gqa-by-modulo": ("129x65", wrong_gqa),
    "last-key-missing": ("17x200", lambda q, k, v, g: oracle(q, k[:, :-1], v[:, :-1], **g).out),
}


@DTYPE
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_not_right(mistake, dtype):
    """Computed in float64 otherwise, so that nothing but the mistake is judged."""
    name, made = MISTAKES[mistake]
    q, k, v, given = nasty(name, dtype)
    exact, rough, sd = references(q, k, v, given)
    verdict = judge(made(q, k, v, given).to(dtype), exact.out, rough.out, dtype, value_rms=exact.value_rms, expected=sd)
    assert not verdict.ok
    good = judge(exact.out.to(dtype), exact.out, rough.out, dtype, value_rms=exact.value_rms, expected=sd)
    assert good.ok, good.message


@DTYPE
@pytest.mark.parametrize("name", SHAPES)
def test_an_lse_in_base_2_is_not_right(name, dtype):
    """Nor one before the scale, nor one without its sink."""
    q, k, v, given = nasty(name, dtype)
    exact = oracle(q, k, v, **given)
    sinks = torch.full((4,), 1.0)
    for wrong, right in (
        (exact.lse * math.log2(math.e), exact.lse),
        (exact.lse, oracle(q, k, v, sinks=sinks, **given).lse),
        (oracle(q, k, v, softmax_scale=0.2, **given).lse, exact.lse),
    ):
        assert not judge(wrong.float(), right, None, dtype, "lse").ok
    assert judge(exact.lse.float(), exact.lse, None, dtype, "lse").ok


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float32_computed_in_half_is_not_right(dtype):
    """A silent down-cast of the inputs fails a float32 call by every rule that has a size."""
    q, k, v, given = nasty("17x200", torch.float32)
    exact, rough, sd = references(q, k, v, given)
    cast = oracle(*(t.to(dtype) for t in (q, k, v)), **given).out
    verdict = judge(cast.float(), exact.out, rough.out, torch.float32, value_rms=exact.value_rms, expected=sd)
    assert all(verdict.ratios[rule] > 10 for rule in ("element", "row", "whole", "absolute"))


def test_tf32_is_not_float32():
    """Eleven bits of mantissa in the products are found out."""
    q, k, v, given = nasty("129x65", torch.float32)
    exact, rough, sd = references(q, k, v, given)

    def tf32(t):
        return (t.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)

    cast = oracle(tf32(q), tf32(k), tf32(v), **given).out
    assert not judge(cast, exact.out, rough.out, torch.float32, value_rms=exact.value_rms, expected=sd).ok


GRADIENT_MISTAKES = {
    "dq-without-scale": ("q", lambda g: {**g, "q": g["q"] * 40**0.5}),
    "dk-of-one-head-of-the-group": ("k", lambda g: {**g, "k": g["k"] / 2}),
    "dv-shifted-by-a-row": ("v", lambda g: {**g, "v": g["v"].roll(1, dims=1)}),
    "dq-one-row-missing": ("q", lambda g: {**g, "q": torch.cat([g["q"][:, :-1], 0 * g["q"][:, -1:]], dim=1)}),
}


@DTYPE
@pytest.mark.parametrize("mistake", GRADIENT_MISTAKES)
def test_a_wrong_gradient_is_not_right(mistake, dtype):
    """And the right one, rounded, is."""
    q, k, v, given = nasty("17x200", dtype)
    d_out = torch.randn(2, 17, 4, 24, generator=torch.Generator().manual_seed(2)).to(dtype)
    right, naive = oracle_gradients(q, k, v, d_out, **given), baseline_gradients(q, k, v, d_out, **given)
    sd = expected_errors(q, k, v, d_out, **given)
    name, made = GRADIENT_MISTAKES[mistake]
    wrong = made(right)[name].to(dtype)
    assert not judge(wrong, right[name], naive[name], dtype, "grad", expected=sd[name]).ok
    verdict = judge(right[name].to(dtype), right[name], naive[name], dtype, "grad", expected=sd[name])
    assert verdict.ok, verdict.message


@DTYPE
def test_a_gradient_that_ignores_the_softcap_is_not_right(dtype):
    """dS without 1 - tanh^2."""
    q, k, v, _ = nasty("17x200", dtype)
    given = {"causal": True, "softcap": 2.0}
    d_out = torch.ones(2, 17, 4, 24, dtype=dtype)
    right, naive = oracle_gradients(q, k, v, d_out, **given), baseline_gradients(q, k, v, d_out, **given)
    sd = expected_errors(q, k, v, d_out, **given)["q"]
    wrong = oracle_gradients(q, k, v, d_out, causal=True)["q"].to(dtype)
    assert not judge(wrong, right["q"], naive["q"], dtype, "grad", expected=sd).ok
