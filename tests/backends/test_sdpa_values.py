"""Every torch backend, on every case that its manifest admits, against the formula in float64."""

from __future__ import annotations

import pytest
import torch

from tests.backends.sdpa_calls import BACKENDS, DEVICES, UNIT, admits, check, device_of, request_of
from tests.backends.sdpa_cases import BACKWARD, FORWARD

DTYPES = tuple(UNIT)
IN_EVERY_DTYPE = {
    "square",
    "gqa-4-over-2",
    "causal-5x12",
    "mask-empty-rows",
    "bias-float32",
    "bias-lowest",
    "lengths-causal",
    "out-float16",
    "out-float32",
}


def _dtypes(case, device):
    """All for a few cases, two for the others; for gradients the device's usual one."""
    if case.id.split("-grads")[0] in IN_EVERY_DTYPE:
        return DTYPES
    if case.grads:
        return (torch.float32,) if device == "cpu" else (torch.bfloat16,)
    return torch.float32, torch.bfloat16


def _admitted(cases):
    """(backend, case, dtype, device): whatever a manifest admits, it must do right."""
    return [
        pytest.param(name, case, dtype, device, id=f"{name}-{case.id}-{str(dtype)[6:]}-{device}")
        for name in BACKENDS
        for case in cases
        for device in DEVICES
        for dtype in _dtypes(case, device)
        if admits(name, request_of(case, dtype), device_of(device)) and not _covered(name, case, dtype, device)
    ]


def _covered(name, case, dtype, device):
    """Gradients of out alone need no run where those through the LSE are run too."""
    full = case.but(lse=True)
    return case.grads and not case.lse and admits(name, request_of(full, dtype), device_of(device))


@pytest.mark.parametrize(("name", "case", "dtype", "device"), _admitted(FORWARD))
def test_out_and_lse_are_the_formulas(name, case, dtype, device):
    """Out and LSE differ from the formula by rounding; empty rows are exactly 0 with LSE -inf."""
    check(name, case, dtype, device)


@pytest.mark.parametrize(("name", "case", "dtype", "device"), _admitted(BACKWARD))
def test_gradients_are_the_formulas(name, case, dtype, device):
    """Gradients of q, k, v, and of the bias, through out and LSE, differ from the formula by rounding."""
    check(name, case, dtype, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", BACKENDS)
def test_manifest_admits_enough_to_be_tested(name, device):
    """The tables above meet every backend on the devices that it declares."""
    kinds = {"sdpa_math": ("cpu", "cuda"), "sdpa_cpu_flash": ("cpu",)}.get(name, ("cuda",))
    cases = [c for c in FORWARD if any(admits(name, request_of(c, d), device_of(device)) for d in DTYPES)]
    assert (len(cases) > 15) == (device in kinds)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", BACKENDS)
def test_very_low_scores_keep_their_softmax(name, device):
    """Scores around -120 under a mask give the plain softmax, and finite gradients."""
    from tests.backends.sdpa_calls import Case, answer, given_for, replace_tensors

    dtype = torch.float16 if device == "cuda" else torch.float32
    case = Case("low", batch=1, q_heads=1, kv_heads=1, seq_q=4, seq_k=4, scale=1.0, causal=True, lse=False, grads=True)
    if not admits(name, request_of(case, dtype), device_of(device)):
        pytest.skip(f"{name} does not declare this on {device}")
    given = given_for(case, dtype)
    q, k, v = (torch.zeros_like(t) for t in (given.q, given.k, given.v))
    q[..., 0], k[..., 0], v[:] = 1, -120, torch.arange(4).view(1, 1, 4, 1)
    given = replace_tensors(given, q=q, k=k, v=v, d_out=torch.ones_like(given.d_out))
    got = answer(name, case, given, device)
    assert torch.allclose(got.out[0, 0, :, 0].float(), torch.tensor([0.0, 0.5, 1.0, 1.5]), atol=2e-3)
    want = torch.tensor([25 / 12, 13 / 12, 7 / 12, 1 / 4])
    assert torch.allclose(got.v[0, 0, :, 0].float(), want, atol=4e-3)
    assert all(bool(torch.isfinite(part).all()) for part in got.parts().values())
