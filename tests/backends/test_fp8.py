"""`fp8`: the quantise pass number by number, the portable kernel against float64, refusals. Interpreted on any machine, and on a GPU."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from attn_backends import Device, Policy, Request, RequestError, attention, select  # noqa: E402
from attn_backends.backends.fp8.attend import with_finite_scale, with_positive_scale  # noqa: E402
from attn_backends.backends.fp8.given import per_block  # noqa: E402
from attn_backends.backends.fp8.operands import Operands  # noqa: E402
from tests.backends import fp8_cases, fp8_extremes, fp8_quantize_cases  # noqa: E402

TABLES = {"quantise": fp8_quantize_cases, "attend": fp8_cases, "extremes": fp8_extremes}
EVERY = [(table, name) for table, module in TABLES.items() for name in module.NAMES]
CHECKS = fp8_extremes.CHECKS | fp8_extremes.ON_A_GPU | fp8_quantize_cases.EXTRA
BOTH = Policy(numerics={"exact", "quantized"})
E4M3 = "scaled-fp8-e4m3"
CODED = {"dtype": "float8_e4m3fn", "q_format": E4M3, "k_format": E4M3, "v_format": E4M3}
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="needs a GPU with fp8 units"
)


@pytest.fixture(scope="session")
def interpreted():
    """What the interpreter found, in processes of its own: the choice is made when a kernel is defined."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    running = {
        name: subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module.__name__],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name, module in TABLES.items()
    }  # fmt: skip
    found = {}
    for name, process in running.items():
        out, errors = process.communicate()
        assert process.returncode == 0, errors
        found[name] = json.loads(out)
    return found


@pytest.mark.parametrize(("table", "name"), EVERY, ids=[f"{table}: {name}" for table, name in EVERY])
def test_interpreted(interpreted, table, name):
    assert not interpreted[table][name]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", fp8_quantize_cases.CASES | fp8_quantize_cases.BFLOAT16)
def test_quantise_on_a_gpu(name):
    case = (fp8_quantize_cases.CASES | fp8_quantize_cases.BFLOAT16)[name]
    assert not fp8_quantize_cases.wrong(case, "cuda")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", fp8_cases.CASES | fp8_cases.ON_A_GPU)
def test_attend_on_a_gpu(name):
    assert not fp8_cases.wrong((fp8_cases.CASES | fp8_cases.ON_A_GPU)[name], "cuda")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", CHECKS)
def test_extremes_and_tiles_on_a_gpu(name):
    assert not CHECKS[name]("cuda")


@pytest.mark.gpu
@needs_gpu
def test_the_portable_kernel_on_dense_calls_on_a_gpu(monkeypatch):
    """Where Hopper's pipeline would serve: the portable one is right there too."""
    from attn_backends.backends.fp8 import attend

    monkeypatch.setattr(attend, "pipelined", lambda *_given: False)
    for name in ("causal", "full", "e4m3 in blocks"):
        for width in (64, 128, 256):
            assert not fp8_cases.wrong(fp8_cases.ON_A_GPU[f"bfloat16, {width} wide, {name}"], "cuda")


@pytest.mark.gpu
@needs_gpu
def test_the_rotation_spreads_outliers():
    """One number in a thousand far out: the output's error is smaller by a quarter at least than without a rotation."""
    from attn_backends.backends.fp8.attend import attend
    from attn_backends.backends.fp8.quantize.launch import quantized

    q, k, v = (torch.randn(1, 4, 2048, 128, device="cuda") for _ in range(3))
    q, k, v = ((x + 10 * torch.randn_like(x) * (torch.rand_like(x) < 0.001)).bfloat16() for x in (q, k, v))
    exact = (q.double() @ k.double().transpose(-1, -2) * 128**-0.5).softmax(-1) @ v.double()
    errors = []
    for rotate in (True, False):
        out = torch.empty_like(q)
        attend(quantized(q, k, v, rotate=rotate), out, None, 128**-0.5, (-1, -1))
        errors.append(float((out.double() - exact).norm()))
    assert errors[0] < 0.75 * errors[1]


def _candidate(**fields):
    given = {
        "dtype": "bfloat16", "batch": 1, "seq_q": 512, "seq_k": 512, "num_q_heads": 8, "num_kv_heads": 2,
        "head_dim_qk": 128, "head_dim_v": 128, **fields,
    }  # fmt: skip
    decision = select(Request(**given), device=Device.pretend("h200"), policy=BOTH)
    return next(one for one in decision.candidates if one.name == "fp8")


def test_nobody_gets_it_unasked():
    request = Request(
        dtype="bfloat16", seq_q=512, seq_k=512, num_q_heads=8, num_kv_heads=8, head_dim_qk=128, head_dim_v=128
    )
    decision = select(request, device=Device.pretend("h200"))
    assert decision.backend != "fp8"
    assert next(one for one in decision.candidates if one.name == "fp8").reasons[0].code == "numerics"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"causal": True, "window_left": 128},
        {"layout": "thd", "varlen": True, "total_q": 512, "total_k": 512},
        {**CODED, **{f"{name}_granularity": "per_tensor" for name in "qkv"}},
        {
            **CODED,
            "q_granularity": "per_head",
            "k_granularity": "block",
            "v_granularity": "per_tensor",
            "scale_block": 128,
        },
    ],
    ids=["16 bits", "window", "packed", "e4m3 per tensor", "e4m3 mixed"],
)
def test_served(fields):
    """It is selected, or fits and is outranked."""
    assert {reason.code for reason in _candidate(**fields).reasons} <= {"outranked"}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"head_dim_qk": 80, "head_dim_v": 80}, "head_dim"),
        ({"causal": True, "causal_alignment": "top_left", "seq_k": 600}, "causal_alignment"),
        ({"softcap": 30.0}, "softcap"),
        ({"dtype": "float8_e5m2", "q_format": "scaled-fp8-e5m2", "k_format": "scaled-fp8-e5m2", "v_format": "scaled-fp8-e5m2",
          "q_granularity": "per_tensor", "k_granularity": "per_tensor", "v_granularity": "per_tensor"}, "kv_format"),
        ({**CODED, "q_granularity": "per_tensor", "k_granularity": "per_channel", "v_granularity": "per_tensor"}, "scale_granularity"),
        ({**CODED, **{f"{name}_granularity": "block" for name in "qkv"}, "scale_block": 64}, "check"),
        ({"needs_backward": True}, "backward"),
    ],
    ids=["width", "top left", "softcap", "e5m2", "per channel", "blocks of 64", "backward"],
)  # fmt: skip
def test_refused(fields, code):
    assert code in [reason.code for reason in _candidate(**fields).reasons]


@pytest.mark.parametrize(
    ("descale", "field"),
    [(None, "k_descale"), (torch.ones(3), "k_descale"), (torch.ones(1, 2, 5), "k_descale")],
    ids=["missing", "wrong heads", "wrong blocks"],
)
def test_a_descale_that_fits_nothing_is_refused(descale, field):
    q, k, v = (torch.zeros(1, 200, 2, 64).to(torch.float8_e4m3fn) for _ in range(3))
    one = torch.ones(())
    with pytest.raises(RequestError, match=field):
        attention(q, k, v, q_descale=one, k_descale=descale, v_descale=one, scale_block=128, policy=BOTH, backend="fp8")


def test_descales_become_views_by_block():
    """Strides of 0 where a scale serves several blocks or heads; by KV head it is repeated for the group."""
    assert per_block(torch.tensor(2.0), "per_tensor", (2, 4, 3)).stride() == (0, 0, 0)
    by_head = per_block(torch.tensor([1.0, 2.0]), "per_head", (2, 4, 3))
    assert by_head[1, :, 2].tolist() == [1.0, 1.0, 2.0, 2.0]
    blocks = torch.arange(6.0).reshape(1, 2, 3)
    assert per_block(blocks, "block", (1, 2, 3)).data_ptr() == blocks.data_ptr()
    assert per_block(blocks, "block", (1, 4, 3))[0, :, 1].tolist() == [1.0, 1.0, 4.0, 4.0]


@pytest.mark.parametrize("scale", [0.5, -1e30, 3e38, -3e38, 1e60])
def test_a_finite_scale_gives_the_same_scores(scale):
    """What float32 does not hold times log2(e) is the descale's, of which a 0 stays 0 and a NaN one."""
    codes, ones = torch.ones(1, 1, 1, 4).to(torch.float8_e4m3fn), torch.ones(1, 1, 1)
    descales = torch.tensor([0.0, 1e-30, -(2.0**-100), math.nan]).reshape(1, 1, 4)
    operands = Operands(
        q8=codes, k8=codes, vt8=codes, q_scale=descales, k_scale=ones, v_scale=ones, longest_q=512, longest_k=1
    )
    moved, finite = with_finite_scale(operands, scale)
    assert abs(finite) * 1.4427 < torch.finfo(torch.float32).max
    assert torch.allclose(moved.q_scale.double() * finite, descales.double() * scale, rtol=1e-6, equal_nan=True)
    assert moved.q_scale[0, 0, 0] == 0.0


@pytest.mark.parametrize("scale", [0.5, -0.5, 0.0])
def test_a_positive_scale_gives_the_same_scores(scale):
    codes = torch.tensor([1.0, -2.0, 0.0, 448.0]).to(torch.float8_e4m3fn).reshape(1, 1, 1, 4)
    ones = torch.ones(1, 1, 1)
    operands = Operands(
        q8=codes, k8=codes, vt8=codes, q_scale=ones, k_scale=ones, v_scale=ones, longest_q=1, longest_k=1
    )
    flipped, positive = with_positive_scale(operands, scale)
    assert positive > 0
    assert torch.equal(flipped.q8.float() * positive, codes.float() * scale)
    assert torch.equal(operands.q8.float(), codes.float())
