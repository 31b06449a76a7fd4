"""How `quantized` and `approximate` backends are judged: beside a baseline of their own kind, and no less strictly for bugs."""

from __future__ import annotations

import pytest
import torch

from attn_backends.conformance import yardstick
from attn_backends.conformance.backend_in_use import items_of, registered
from attn_backends.conformance.engine import run_item
from attn_backends.conformance.item import Item, parse_item
from attn_backends.conformance.oracle import oracle
from attn_backends.conformance.outcome import Outcome
from attn_backends.conformance.problem import read_problem
from attn_backends.conformance.quantiser import DRAWS, RELATIVE, Quantiser
from attn_backends.conformance.tolerance import SPEC_1_0
from attn_backends.conformance.yardstick import coarseness, of_forward
from attn_backends.host.arguments import arguments
from attn_backends.registry.registry import default_registry

BOX = {
    "device": ["cpu"], "dtype": ["float16", "bfloat16"], "kv_format": ["dense"], "layout": ["bshd", "bhsd"], "phase": "any",
    "attn_type": "any", "head_dim": [64, 128], "head_dim_v": [64, 128, 256], "gqa_ratio": "any", "seq_len": "any",
    "causal": [False, True], "causal_alignment": ["bottom_right"], "window": ["none", "left", "two_sided"],
    "scale": ["default", "custom"], "lse": [False, True], "strides": "any", "index_width": [32],
}  # fmt: skip
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def stored(x, form, tokens, octaves=False):
    """[B, H, S, W] in the format and back, one scale, or power of two, for each head and `tokens` tokens."""
    if form is None or not x.numel():
        return x
    blocks = []
    for block in x.split(tokens, dim=2):
        scale = block.abs().amax((2, 3), keepdim=True) / torch.finfo(form).max
        scale = torch.where(scale > 0, scale, 1.0)
        if octaves:
            scale = scale.log2().ceil().exp2()
        blocks.append((block / scale).to(form).float() * scale)
    return torch.cat(blocks, 2)


def heads_first(x, layout):
    return x.transpose(1, 2) if layout == "bshd" else x


def kernel(
    form=E4M3, tokens=64, weights=E4M3, rotate=None, octaves=False, lse_base=1.0, v_factor=1.0, offset=0, noise=0.0
):
    """A fused kernel as a quantised one does it, in float32, with a mistake or another choice."""

    def run(call):
        q, k, v = (heads_first(x, call.layout).float() for x in (call.q, call.k, call.v))
        if rotate is not None:
            drawn = torch.Generator().manual_seed(rotate)
            turn = torch.linalg.qr(torch.randn(q.shape[-1], q.shape[-1], generator=drawn))[0]
            q, k = q @ turn, k @ turn
        distance = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None] - (k.shape[2] - q.shape[2]) + offset
        seen = torch.ones_like(distance, dtype=torch.bool)
        if call.causal:
            seen &= distance <= 0
        if call.window_left >= 0:
            seen &= distance >= -call.window_left
        if call.window_right >= 0:
            seen &= distance <= call.window_right
        k, v = (x.masked_fill(~seen.any(0)[:, None], 0.0) for x in (k, v))
        q, k, v = stored(q, form, tokens, octaves), stored(k, form, tokens, octaves), stored(v, form, tokens) * v_factor
        ratio = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(ratio, 1), v.repeat_interleave(ratio, 1)
        scores = (call.softmax_scale * q @ k.mT).masked_fill(~seen, -torch.inf)
        top = (
            scores.amax(-1, keepdim=True) if scores.shape[-1] else scores.new_full((*scores.shape[:-1], 1), -torch.inf)
        )
        powers = (scores - top.masked_fill(top == -torch.inf, 0.0)).exp()
        total = powers.sum(-1, keepdim=True)
        held = powers if weights is None else (powers * 256).to(weights).float() / 256
        out = (held @ v) / total.masked_fill(total == 0, 1.0)
        out = out + noise * out.abs().mean() * torch.randn(out.shape, generator=torch.Generator().manual_seed(2)) * (
            total > 0
        )
        heads_first(call.out, call.layout).copy_(out)
        if call.lse is not None:
            call.lse.copy_((top + total.log()).squeeze(-1) * lse_base)

    return run


def manifest(numerics, **box):
    return {"name": f"small_{numerics}", "version": "0.1.0", "numerics": numerics, "capability": [{**BOX, **box}]}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Tensors here are tiny; more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def failures(numerics, run, every=1):
    """(items that fail, how many ran) of the plan, or of every nth item of each check."""
    with registered(manifest(numerics), run) as name:
        by_check = {}
        for item in items_of(name):
            by_check.setdefault(item.check, []).append(item)
        results = [run_item(name, item) for items in by_check.values() for item in items[::every]]
    return [f"{one.id}: {one.message}" for one in results if one.outcome.bad], len(results)


def outcome(numerics, run, item):
    check, case = parse_item(item)
    with registered(manifest(numerics), run) as name:
        return run_item(name, Item(check, case))


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"tokens": 10**6},
        {"rotate": 1},
        {"rotate": 2, "octaves": True},
        {"tokens": 16, "weights": None},
        {"form": None, "weights": E4M3},
    ],
    ids=["blocks", "per head", "rotated", "rotated, powers of two", "weights kept", "weights alone"],
)
def test_an_honest_quantised_backend_conforms(choice):
    """e4m3 with scales by block or by head, rotated, or in part: each is right under `quantized`."""
    found, ran = failures("quantized", kernel(**choice), every=3)
    assert not found
    assert ran > 30


@pytest.mark.parametrize("rotation", [5, 6, 9, 16, 18, 22])
def test_rotations_that_hit_a_row_hard_are_right_as_well(rotation):
    """Parallel queries and keys: one rotation in six is off there by more than three times what a single one would show."""
    item = "oracle/fwd-fp16-b2h6x2-s129x65-d64x256-bhsd-mixed-encoder_decoder-left5-right3-scale0.3-outfp16-row_padded-offset-s1"
    found = outcome("quantized", kernel(tokens=128, rotate=rotation, octaves=True), item)
    assert found.outcome is Outcome.PASS, found.message


@pytest.mark.parametrize(("kept", "turned"), [(1.0, True), (0.0, False)], ids=["equal", "far apart"])
def test_a_unit_that_adds_with_few_bits_may_turn_a_row_of_codes(kept, turned):
    """Codes are not rounded, but of two keys with the same score of 10,000 either may win; of two that are far apart one does."""
    q = (torch.randn(1, 1, 1, 128, generator=torch.Generator().manual_seed(0)) * 8).to(E4M3).float()
    k = q.repeat(1, 2, 1, 1)
    k[0, 1, 0, q.abs().argmax()] *= kept
    v = torch.tensor([-1.0, 1.0]).view(1, 2, 1, 1).expand(1, 2, 1, 16)
    tensors = tuple(x.to(E4M3) for x in (q, k, v))
    given = {**{f"{name}_descale": torch.tensor(1.0) for name in "qkv"}, "softmax_scale": 1e4 / float(q.square().sum())}
    sd = of_forward("quantized", tensors, given, oracle(*tensors, **given)).expected["out"]
    assert bool((sd > 0.3).all()) is turned
    assert bool((sd < 0.1).all()) is not turned


@pytest.mark.parametrize(("other", "turned"), [(0.875, True), (0.5, False)], ids=["near", "far apart"])
def test_a_weight_too_small_for_any_float_may_gain_a_row(other, turned):
    """Scores of 10 million of which a unit may lose 7,000: a key 10,000 behind may win, one 40,000 behind does not."""
    q, k = torch.ones(1, 1, 1, 128), torch.ones(1, 2, 1, 128)
    k[0, 1, 0, 0] = other
    v = torch.tensor([-1.0, 1.0]).view(1, 2, 1, 1).expand(1, 2, 1, 16)
    tensors = tuple(x.to(E4M3) for x in (q, k, v))
    given = {**{f"{name}_descale": torch.tensor(1.0) for name in "qkv"}, "softmax_scale": 1e7 / 128}
    _moved, found = yardstick._by_scores(tensors, given)
    assert bool((found > 1.0).all()) is turned
    assert bool((found == 0.0).all()) is not turned


def test_the_same_backend_is_no_exact_one():
    """What a quantiser costs is far beyond rounding."""
    found, _ = failures("exact", kernel(), every=3)
    assert any(one.startswith("oracle/") for one in found)
    assert any(one.startswith("onehot/") for one in found)


PLAIN = "fwd-bf16-b2h4x2-s129x65-d64-causal-randn-s0"


@pytest.mark.parametrize(
    ("mistake", "check"),
    [
        ({"v_factor": 1.1}, "oracle"),
        ({"v_factor": 0.5}, "onehot"),
        ({"v_factor": 1.5}, "ones"),
        ({"lse_base": 1.4427}, "oracle"),
        ({"offset": 1}, "oracle"),
        ({"offset": 1}, "visible"),
        ({"offset": 1}, "huge"),
        ({"offset": -1}, "future"),
    ],
    ids=lambda value: "-".join(f"{name}-{one}" for name, one in value.items()) if isinstance(value, dict) else value,
)
def test_a_mistake_of_a_quantised_backend_is_found(mistake, check):
    """A scale that is not right, an LSE in base 2, a diagonal off by one."""
    item = f"{check}/{PLAIN}"
    assert outcome("quantized", kernel(), item).outcome is Outcome.PASS
    assert outcome("quantized", kernel(**mistake), item).outcome is Outcome.FAIL


def test_a_coarser_format_is_not_quantized():
    """e5m2 has half the digits of the spec's quantiser, and is told from it."""
    found, _ = failures("quantized", kernel(form=E5M2), every=4)
    assert any(one.startswith("oracle/") for one in found)


def test_an_approximate_backend_has_the_bound_of_the_spec():
    """5 % of rms(v) is ordinary there, whoever it is; a third is not."""
    exact = {"form": None, "weights": None}
    item = f"oracle/{PLAIN}"
    assert outcome("approximate", kernel(**exact, noise=0.05), item).outcome is Outcome.PASS
    assert outcome("exact", kernel(**exact, noise=0.05), item).outcome is Outcome.FAIL
    assert outcome("approximate", kernel(**exact, noise=0.5), item).outcome is Outcome.FAIL
    found, _ = failures("approximate", kernel(**exact), every=3)
    assert not found


# -- the quantiser itself ------------------------------------------------------------------------------------------------


def problem_of(q, k):
    return read_problem(q, k, k, arguments({})), (q, k, k)


def test_numbers_of_the_format_stay():
    """The largest of a block becomes 448 of its scale, a block of zeros stays zero, codes are left alone."""
    q = torch.zeros(1, 300, 1, 4, dtype=torch.float64)
    q[0, :128, 0] = torch.tensor([448.0, 13.0, 0.0, 2.0**-9])
    q[0, 128:150, 0, 0] = 1.7
    k = torch.full((1, 1, 1, 4), 3.0, dtype=torch.float64)
    problem, tensors = problem_of(q, k)
    held = Quantiser().problem(problem, tensors)
    assert torch.equal(held.q, problem.q)
    assert torch.equal(held.v, problem.v)
    codes = k.to(torch.int8)
    assert torch.equal(Quantiser(draw=1).problem(problem, (q, codes, codes)).k, problem.k)
    assert not torch.equal(Quantiser(draw=1).problem(problem, tensors).k, problem.k)


def test_a_scale_is_of_a_head_and_a_block():
    """An outlier costs the digits of its own head and its 128 tokens, and of no others."""
    k = torch.rand(1, 256, 2, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    q = torch.ones(1, 1, 2, 8, dtype=torch.float64)
    before = Quantiser().problem(*problem_of(q, k)).k
    k[0, 5, 0, 0] = 1e6
    after = Quantiser().problem(*problem_of(q, k)).k
    assert torch.equal(before[:, 1], after[:, 1])
    assert torch.equal(before[:, 0, 128:], after[:, 0, 128:])
    assert not after[:, 0, 6:128].any()


def test_draws_are_as_good_as_the_smallest_scales():
    """Their errors have the size of rounding to nearest, and differ."""
    weights = torch.rand(1, 1, 200, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    errors = [(Quantiser(draw=nth).weights(weights) - weights).square().mean().sqrt() for nth in (None, *range(DRAWS))]
    assert float(max(errors) / min(errors)) < 1.25
    assert float(errors[0] / weights.square().mean().sqrt()) == pytest.approx(RELATIVE, rel=0.25)
    assert not torch.equal(Quantiser(draw=0).weights(weights), Quantiser(draw=1).weights(weights))
    assert not Quantiser(draw=0).weights(torch.zeros(1, 1, 2, 3)).any()


def test_the_yardstick_follows_the_numerics():
    """A quantised call's ordinary error is that of e4m3, an approximate one's the stated bound; an exact one has neither."""
    given = {"causal": True, "return_lse": True}
    q, k, v = (
        torch.randn(1, 33, 2, 64, generator=torch.Generator().manual_seed(n), dtype=torch.float64).bfloat16()
        for n in range(3)
    )
    exact = oracle(q, k, v, **given)
    sizes = {}
    for numerics in ("exact", "quantized", "approximate"):
        measure = of_forward(numerics, (q, k, v), given, exact)
        sizes[numerics] = float(measure.expected["out"].square().mean().sqrt())
        assert ("lse" in measure.expected) == (numerics != "exact")
    assert sizes["exact"] < 0.004 < 0.01 < sizes["quantized"] < 0.06
    assert sizes["approximate"] == pytest.approx(SPEC_1_0.approximate * exact.value_rms, rel=0.02)
    assert [coarseness(word) for word in sizes] == [0.0, 2.0**-4, SPEC_1_0.approximate]


# -- float64, whose LSE is float32 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", ["randn", "offset", "small"])
@pytest.mark.parametrize("backend", ["eager", "sdpa_cpu_flash"])
def test_float64_states_merge_as_well_as_float32_lses_allow(backend, values):
    """The LSE of a large score has few digits left behind the point; the check of a split knows that."""
    check, case = parse_item(f"split/fwd-fp64-b2h4x2-s129x65-d128-scale0.3-{values}-s1")
    result = run_item(backend, Item(check, case))
    assert result.outcome is Outcome.PASS, result.message


def test_a_float64_split_with_a_wrong_lse_is_found():
    """One part in ten thousand is no rounding."""

    def run(call):
        default_registry().load("eager").run(call)
        call.lse.mul_(1.0001)

    box = {**BOX, "dtype": ["float64"]}
    check, case = parse_item("split/fwd-fp64-b2h4x2-s129x65-d128-randn-s1")
    with registered({"name": "small_wide", "version": "0.1.0", "capability": [box]}, run) as name:
        assert run_item(name, Item(check, case)).outcome is Outcome.FAIL
