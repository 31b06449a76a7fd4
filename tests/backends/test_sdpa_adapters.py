"""The adapters of torch's CUDA kernels on a CPU, around stand-ins: whatever their manifests and checks admit comes out right."""

from __future__ import annotations

import random

import pytest
import torch

from attn_backends.backends.sdpa_flash.limits import check as flash_check
from attn_backends.device import Device
from tests.backends.cuda_stand_ins import STAND_INS
from tests.backends.sdpa_calls import Case, adapter, admits, check, request_of
from tests.backends.sdpa_cases import BACKWARD, FORWARD

H200 = Device(kind="cuda", name="sm_90", arch=(9, 0))
DTYPES = (torch.float16, torch.bfloat16)
DRAWS = 60


@pytest.fixture(params=STAND_INS)
def name(request, monkeypatch):
    """A backend whose kernel is its stand-in."""
    forward, backward = STAND_INS[request.param]
    monkeypatch.setattr(adapter(request.param), "_FORWARD", forward)
    monkeypatch.setattr(adapter(request.param), "_BACKWARD", backward)
    return request.param


def served(name, case, dtype):
    """Whether boxes and check admit a case on an H200."""
    request = request_of(case, dtype)
    return admits(name, request, H200) and not (name == "sdpa_flash" and flash_check(request, H200))


def test_every_case_of_the_table_that_is_admitted(name):
    """Out, LSE and gradients, in the output's own dtype."""
    ran = 0
    for case in (*FORWARD, *BACKWARD):
        if served(name, case, torch.bfloat16):
            check(name, case, torch.bfloat16, "cpu")
            ran += 1
    assert ran > 50


def test_every_drawn_call_that_is_admitted(name):
    """Lengths, diagonals, windows and output dtypes at random, wide windows over few keys among them."""
    dice, ran = random.Random(name), 0
    while ran < DRAWS:
        case = Case(
            "drawn", batch=dice.choice((1, 2)), seq_q=dice.choice((1, 1, 2, 7, 19, 40)), seq_k=dice.choice((1, 3, 8, 19, 40)),
            kv_heads=2, q_heads=dice.choice((2, 4)), head_dim=dice.choice((8, 13)), head_dim_v=dice.choice((None, 21)),
            causal=dice.random() < 0.5, alignment=dice.choice(("bottom_right", "top_left")),
            left=dice.choice((-1, -1, 0, 3, 30)), right=dice.choice((-1, -1, 0, 2, 9, 30)),
            scale=dice.choice((None, 0.0, -0.3)), layout=dice.choice(("bshd", "bhsd")), lse=dice.random() < 0.5,
            grads=dice.random() < 0.5, out_dtype=dice.choice((None, "float16", "float32", "float64")),
            memory=dice.choice(("contiguous", "row_odd", "last_dim_step2")), seed=dice.randrange(1000),
        )  # fmt: skip
        dtype = dice.choice(DTYPES)
        if served(name, case, dtype):
            check(name, case, dtype, "cpu")
            ran += 1


WIDE_WINDOW = Case("wide-window", seq_q=40, seq_k=10, right=20)


def test_a_right_bound_longer_than_the_keys_is_refused(monkeypatch):
    """FlashAttention-2 takes it for no bound, and rows before the first key would see keys: the check says so."""
    for part, stand_in in zip(("_FORWARD", "_BACKWARD"), STAND_INS["sdpa_flash"], strict=True):
        monkeypatch.setattr(adapter("sdpa_flash"), part, stand_in)
    with pytest.raises(AssertionError, match="out: error"):
        check("sdpa_flash", WIDE_WINDOW, torch.bfloat16, "cpu")
    (reason,) = flash_check(request_of(WIDE_WINDOW, torch.bfloat16), H200)
    assert (reason.code, reason.axis, reason.got) == ("check", "window", 20)
    for harmless in ({"right": 5}, {"seq_q": 10}, {"causal": True}, {"seq_k": 64, "seq_q": 80}):
        assert not flash_check(request_of(WIDE_WINDOW.but(**harmless), torch.bfloat16), H200)


def test_the_selector_refuses_it_too():
    """Under `check`, whatever the lengths of the bucket; the next backend takes it."""
    import attn_backends

    request = request_of(WIDE_WINDOW.but(seq_k=18, lse=False), torch.bfloat16)
    decision = attn_backends.select(request, device=Device.pretend("h200"))
    assert [reason.code for reason in decision.candidate("sdpa_flash").reasons] == ["check"]
    assert decision.backend not in ("sdpa_flash", None)
