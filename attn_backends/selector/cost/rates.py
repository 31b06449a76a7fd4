"""What a device can do per second, for the dtypes of a request; None where the facts about the device do not say."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from attn_backends.device import Device

# Seconds that one kernel costs however little it does, and seconds that a call costs besides: its first loads, its last
# tile. Fitted together with the manifests' `start_us` to 438 shapes on an H200 (docs/measuring.md).
LAUNCH = {"cuda": 2.5e-6, "rocm": 2.5e-6, "cpu": 5e-6, "mps": 5e-6, "xpu": 5e-6}
RAMP = {"cuda": 1.2e-6, "rocm": 1.2e-6, "cpu": 0.0, "mps": 12e-6, "xpu": 12e-6}
# Whose rate holds for a dtype that the device does not list, in this order.
_STAND_INS = {
    "float8_e4m3fn": ("float8_e4m3fnuz", "int8", "bfloat16", "float16", "float32"),
    "float8_e5m2": ("float8_e4m3fn", "float8_e4m3fnuz", "int8", "bfloat16", "float16", "float32"),
    "int8": ("float8_e4m3fn", "bfloat16", "float16", "float32"),
    "bfloat16": ("float16", "float32"),
    "float16": ("bfloat16", "float32"),
}


class Rates(NamedTuple):
    """Per second, at the vendor's peak. `exp` is None where exponentials are not known to bound anything."""

    matrix: float
    exp: float | None
    memory: float
    launch: float  # seconds per kernel
    ramp: float  # seconds per call
    units: int  # multiprocessors


def rates_of(device: Device, dtype: str) -> Rates | None:
    """The rates for matrix operands of `dtype`; None where matrix rate or memory bandwidth is unknown."""
    matrix = _matrix_rate(device.matrix_rates, dtype)
    if matrix is None or device.memory_bandwidth is None:
        return None
    kind = device.kind
    return Rates(matrix, device.exp_rate, device.memory_bandwidth, LAUNCH[kind], RAMP[kind], device.num_sms or 1)


def _matrix_rate(rates: tuple[tuple[str, float], ...], dtype: str) -> float | None:
    for name, rate in rates:
        if name == dtype:
            return rate
    known = dict(rates)
    return next((known[name] for name in _STAND_INS.get(dtype, ()) if name in known), None)
