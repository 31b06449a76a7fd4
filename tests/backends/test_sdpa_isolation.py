"""What must not matter does not: hidden keys, memory layout, repetition; bit for bit."""

from __future__ import annotations

import pytest
import torch

from tests.backends.sdpa_calls import (
    BACKENDS,
    DEVICES,
    Case,
    adapter,
    admits,
    answer,
    call_of,
    check,
    device_of,
    given_for,
    odd_units,
    request_of,
)
from tests.backends.sdpa_cases import BIASED, CAUSAL, LENGTHS, MASKED, WINDOWS

DTYPES = (torch.float32, torch.bfloat16)
MEMORIES = ("head_major", "row_padded", "row_odd", "row_step2", "last_dim_step2")


def _varied(dtype, device, mode):
    """Bits do not care much for the dtype: the device's usual one for all, the other for forwards."""
    return mode == "forward" or dtype == {"cpu": torch.float32, "cuda": torch.bfloat16}[device]


def _admitted(cases, modes=("forward", "backward"), dtypes=DTYPES):
    found = []
    for name in BACKENDS:
        for case in cases:
            for dtype in dtypes:
                for device in DEVICES:
                    for mode in modes:
                        asked = case.but(grads=mode == "backward", lse=mode == "forward")
                        if _varied(dtype, device, mode) and admits(name, request_of(asked, dtype), device_of(device)):
                            label = f"{name}-{case.id}-{str(dtype)[6:]}-{device}-{mode}"
                            found.append(pytest.param(name, asked, dtype, device, id=label))
    return found


def assert_same_bits(one, other):
    for (part, a), b in zip(one.parts().items(), other.parts().values(), strict=True):
        assert torch.equal(a, b), f"{part} differs by {(a.double() - b.double()).abs().max()}"


def _hides(case):
    return "tiles" not in case.id and given_for(case, torch.float32).poisoned(0.0) is not None


HIDING = [case for case in (*CAUSAL, *WINDOWS, *MASKED, *BIASED, *LENGTHS) if _hides(case)]


@pytest.mark.parametrize(("name", "case", "dtype", "device"), _admitted(HIDING))
def test_keys_that_no_row_sees_change_nothing(name, case, dtype, device):
    """NaN, inf or 1e30 at a key that no row sees leaves out, LSE and gradients bit-equal, and their own gradients 0."""
    given = given_for(case, dtype)
    clean = answer(name, case, given, device)
    for value in (float("nan"), float("inf"), 1e30):
        assert_same_bits(answer(name, case, given.poisoned(value), device), clean)


PARTLY = (
    Case("causal", causal=True, batch=1),
    Case("window", causal=True, left=3, batch=1),
    Case("mask", mask="bool_2d", batch=1),
    Case("bias", mask="bias_holes", batch=1),
    Case("lengths", seq_lens=(12,), causal=True, batch=1, seq_q=7),
)


@pytest.mark.parametrize(("name", "case", "dtype", "device"), _admitted(PARTLY, modes=("forward",)))
def test_huge_values_stay_with_the_rows_that_see_them(name, case, dtype, device):
    """1e30 at a key that some rows see leaves the rows that do not see it bit-equal."""
    given = given_for(case, dtype)
    visible = given.visible[0]  # [H, Sq, Sk]
    key = int(visible.float().mean((0, 1)).sub(0.5).abs().argmin())
    clean = answer(name, case, given, device)
    given.k[:, :, key], given.v[:, :, key] = 1e30, 1e30
    dirty = answer(name, case, given, device)
    blind = ~visible[:, :, key]
    assert blind.any()
    assert torch.equal(clean.out[0][blind], dirty.out[0][blind])
    assert torch.equal(clean.lse[0][blind], dirty.lse[0][blind])


STRIDED = (
    Case("plain", head_dim=32),
    Case("causal-gqa", causal=True, q_heads=4, kv_heads=2, seq_q=33, seq_k=40),
    Case("head-dim-13", head_dim=13, causal=True),
    Case("mask", mask="bool_2d", head_dim=24),
    Case("tiles", batch=1, seq_q=130, seq_k=200, head_dim=64),
    Case("bhsd", layout="bhsd", causal=True),
)


@pytest.mark.parametrize(("name", "case", "dtype", "device"), _admitted(STRIDED))
def test_memory_layout_changes_no_bit(name, case, dtype, device):
    """Any stride of q, k, v and dO gives the bits of the contiguous call, or its numbers where no two runs agree."""
    given = given_for(case, dtype)
    plain = answer(name, case, given, device)
    repeats = not case.grads or admits(name, request_of(case, dtype, deterministic=True), device_of(device))
    for memory in MEMORIES:
        if repeats:
            assert_same_bits(answer(name, case.but(memory=memory), given, device), plain)
        else:
            check(name, case.but(memory=memory), dtype, device)


@pytest.mark.parametrize(("name", "case", "dtype", "device"), _admitted(STRIDED[:1]))
def test_fused_views_and_odd_unit_strides_change_no_bit(name, case, dtype, device):
    """q, k, v as views of one buffer, and strides of 3 on dims of size 1, give the bits of the contiguous call."""
    case = case.but(batch=1, q_heads=1, kv_heads=1)
    given = given_for(case, dtype)
    plain = call_of(case, given, device)
    adapter(name).run(plain)
    fused = call_of(case, given, device)
    room = torch.cat([plain.q, plain.k, plain.v], dim=2)
    fused.q, fused.k, fused.v = (odd_units(room[:, :, head : head + 1]) for head in range(3))
    adapter(name).run(fused)
    assert torch.equal(plain.out, fused.out)
    if case.grads:
        d_out = torch.ones_like(plain.out)
        one, other = adapter(name).backward(plain, d_out, None), adapter(name).backward(fused, d_out, None)
        assert all(torch.equal(getattr(one, part), getattr(other, part)) for part in "qkv")


@pytest.mark.parametrize(("name", "case", "dtype", "device"), _admitted(STRIDED, modes=("backward",)))
def test_expanded_output_gradient(name, case, dtype, device):
    """dO may be a scalar expanded to all its shape, as the backward of sum() makes it."""
    given = given_for(case, dtype)
    given.d_out = torch.ones_like(given.d_out)
    assert_same_bits(answer(name, case, given, device, expanded_d_out=True), answer(name, case, given, device))


@pytest.mark.parametrize(
    ("name", "case", "dtype", "device"),
    _admitted(
        [case.but(deterministic=True) for case in (*STRIDED, Case("long", batch=1, seq_q=150, seq_k=700, causal=True))]
    ),
)
@pytest.mark.usefixtures("two_threads")
def test_deterministic_means_the_same_bits_again(name, case, dtype, device):
    """Where `deterministic` is declared, five runs give the same bits."""
    given = given_for(case, dtype)
    first = answer(name, case, given, device)
    for _ in range(4):
        assert_same_bits(answer(name, case, given, device), first)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", BACKENDS)
def test_out_of_any_strides_is_filled(name, device):
    """The host's `out` may have any strides, and whatever it held is gone."""
    dtype = torch.float16 if device == "cuda" else torch.float32
    case = Case("out", causal=True, seq_q=12, seq_k=5)
    if not admits(name, request_of(case, dtype), device_of(device)):
        pytest.skip(f"{name} does not declare this on {device}")
    given = given_for(case, dtype)
    plain, strided = call_of(case, given, device), call_of(case, given, device)
    strided.out = torch.full((*plain.out.shape[:-1], 2 * case.width_v), float("nan"), dtype=dtype, device=device)[
        ..., ::2
    ]
    adapter(name).run(plain)
    adapter(name).run(strided)
    assert torch.equal(plain.out, strided.out)
