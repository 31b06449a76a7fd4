"""`Device`: facts about the device that a call would run on, real or pretended.

It holds no handle and owns no memory; it is what selection, `check` functions and the cost model read. Importing it loads
no torch and touches no driver. Light core: standard library only; anybody may import it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from attn_backends.errors import RequestError
from attn_backends.reason import plain
from attn_backends.values import read_arch

KINDS = ("cuda", "rocm", "cpu", "mps", "xpu")
_GPU_KINDS = ("cuda", "rocm")
_BRANDS = {"nvidia", "geforce", "tesla", "amd", "instinct"}
_DATASHEET_ROUNDING = 0.05  # a bandwidth that clock and bus width put this near to the stated one is the stated one

Arch = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Facts about one device; None means unknown. Sizes in bytes, rates per second, clocks in hertz.

    Raises RequestError for a kind that is not one of `KINDS`, an `arch` that is no pair, or a fact that is not positive.
    """

    kind: str
    name: str  # "H200", "sm_90" for a whole architecture, "cpu"
    arch: Arch | None = None  # (major, minor); gfx942 is (9, 4)
    num_sms: int | None = None  # multiprocessors; compute units on ROCm, cores on a CPU
    smem_bytes: int | None = None  # largest shared memory of one block, opted in
    smem_per_sm_bytes: int | None = None
    registers_per_sm: int | None = None  # 32-bit
    l2_bytes: int | None = None
    memory_bytes: int | None = None
    memory_bandwidth: float | None = None  # bytes per second
    matrix_rates: tuple[tuple[str, float], ...] = ()  # operand dtype -> dense FLOP per second, sorted by dtype
    exp_rate: float | None = None  # exponentials per second
    clock_hz: float | None = None
    pretended: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise RequestError("kind", self.kind, " | ".join(KINDS), hint=_near(self.kind, KINDS))
        if self.arch is not None and not _is_arch(self.arch):
            raise RequestError("arch", self.arch, "(major, minor) or none")
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and not _is_positive(value):
                raise RequestError(name, value, "a positive number or none")

    @classmethod
    def current(cls, index: int = 0) -> Device:
        """The real machine's GPU `index`, or its CPU where there is no such GPU. Never raises.

        Asked once per process, the NVIDIA driver by a child process, so that this one can still fork and use CUDA.
        """
        return _current_gpu(index) or _current_cpu()

    @classmethod
    def of(cls, kind: str, index: int | None = None) -> Device:
        """The real device behind a torch device type and index; "cuda" on a ROCm system is a rocm device.

        A GPU that cannot be asked has its kind and no facts. Raises RequestError for a type outside `KINDS`.
        """
        if kind == "cpu":
            return _current_cpu()
        found = _current_gpu(index or 0) if kind in _GPU_KINDS else None
        return found or cls(kind=kind, name=kind)

    @classmethod
    def pretend(cls, name: str, **overrides: Any) -> Device:
        """A device that need not be here: a name of `pretendable()`, or any "sm_87", "8.7" or "gfx90a".

        Case, spaces, dashes and underscores in names do not matter. An architecture has the facts of the device that
        represents it in devices.toml, or none. `overrides` set fields. Raises RequestError with the nearest names.
        """
        device = _listed_device(name) or _arch_device(name)
        if device is None:
            raise _unknown_device(name)
        values = {"pretended": True, **_field_values(overrides)}
        return replace(device, **values)

    @staticmethod
    def pretendable() -> tuple[str, ...]:
        """Every name in the data file: devices, then the architectures that one of them represents."""
        names = [listed.device.name for listed in _listed()]
        return (*names, *(listed.arch_name for listed in _listed() if listed.represents_arch))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Device:
        """Read `to_json`'s dict. Raises RequestError for an unknown key or a missing kind or name."""
        for required in ("kind", "name"):
            if required not in data:
                raise RequestError(required, None, "a string", hint="this field has no default")
        return cls(**_field_values(data))

    def to_json(self) -> dict[str, Any]:
        """Every field that is known, as plain JSON values; `matrix_rates` as a dict."""
        known = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        if self.matrix_rates:
            known["matrix_rates"] = dict(self.matrix_rates)
        return {name: value if name == "matrix_rates" else plain(value) for name, value in known.items()}

    def matrix_rate(self, dtype: str) -> float | None:
        """Dense FLOP per second of matrix multiplication with operands of `dtype` (or "tf32"); None if unknown."""
        return dict(self.matrix_rates).get(dtype)

    def describe(self) -> str:
        """One line: `H200 (cuda, sm_90)`, `MI300X (rocm, gfx942)`, `cpu`."""
        known = [] if self.name == self.kind else [self.kind]
        if self.arch is not None:
            shown = arch_name(self.kind, self.arch)
            known += [] if shown == self.name else [shown]
        return f"{self.name} ({', '.join(known)})" if known else self.name


def arch_name(kind: str, arch: Arch) -> str:
    """`sm_90` on CUDA; on ROCm `gfx942` where a listed device represents it; else `9.4`."""
    if kind == "cuda":
        return f"sm_{arch[0]}{arch[1]}"
    known = (listed.arch_name for listed in _listed() if listed.represents_arch)
    return next((name for name in known if _named_arch(name) == (kind, arch, name)), f"{arch[0]}.{arch[1]}")


_FIELDS = tuple(field.name for field in fields(Device))
_NUMBERS = tuple(name for name in _FIELDS if name not in ("kind", "name", "arch", "matrix_rates", "pretended"))


def reset() -> None:
    """Forget the machine, so that the next `Device.current` asks it again. For tests."""
    _current_gpu.cache_clear()
    _current_cpu.cache_clear()


def _is_arch(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(type(part) is int and part >= 0 for part in value)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _near(name: Any, known: Iterable[str]) -> str:
    from attn_backends.box import nearest_names  # loads the table; only errors need it

    return nearest_names(str(name).lower(), [word.lower() for word in known])


def _unknown_device(name: Any) -> RequestError:
    from attn_backends.box import near_names

    names = [known.lower().replace(" ", "_") for known in Device.pretendable()]
    devices = [known for known in names if _named_arch(known) is None]
    allowed = f"{', '.join(devices)}, or an architecture such as sm_90, 9.0 or gfx942"
    near = near_names(str(name).lower().replace(" ", "_"), names)
    return RequestError("device", name, allowed, hint=near or "case, spaces, dashes and underscores do not matter")


def _field_values(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values (JSON, TOML, keyword arguments) as field values; raises RequestError for an unknown field."""
    for name in raw:
        if name not in _FIELDS:
            raise RequestError(name, raw[name], "a device field", hint=_near(name, _FIELDS))
    values = dict(raw)
    if values.get("arch") is not None:
        values["arch"] = _arch_value(values["arch"])
    if "matrix_rates" in values:
        values["matrix_rates"] = _rates_value(values["matrix_rates"])
    return values


def _arch_value(raw: Any) -> Arch:
    try:
        return read_arch(raw)
    except ValueError as error:
        raise RequestError("arch", raw, '"9.0", (9, 0) or "sm_90"') from error


def _rates_value(raw: Any) -> tuple[tuple[str, float], ...]:
    try:
        rates = dict(raw)
    except (TypeError, ValueError):
        raise RequestError("matrix_rates", raw, "a table of dtype to FLOP per second") from None
    for dtype, rate in rates.items():
        if not isinstance(dtype, str) or not _is_positive(rate):
            raise RequestError("matrix_rates", {dtype: rate}, "a dtype name and a positive number")
    return tuple(sorted((dtype, float(rate)) for dtype, rate in rates.items()))


# The data file.


@dataclass(frozen=True, slots=True)
class _Listed:
    """One entry of devices.toml."""

    device: Device
    arch_name: str  # "sm_90", "gfx942", "" on a CPU
    represents_arch: bool
    products: frozenset[str]  # keys under which drivers report it


@cache
def _listed() -> tuple[_Listed, ...]:
    import tomllib
    from pathlib import Path

    data = tomllib.loads(Path(__file__).with_name("devices.toml").read_text(encoding="utf-8"))
    return tuple(_read_entry(entry) for entry in data["device"])


def _read_entry(entry: dict[str, Any]) -> _Listed:
    arch_name = entry.get("arch", "")
    named = _named_arch(arch_name)
    facts = {name: value for name, value in entry.items() if name in _FIELDS}
    facts["arch"] = None if named is None else named[1]
    return _Listed(
        device=Device(**_field_values(facts)),
        arch_name=arch_name,
        represents_arch=entry.get("represents_arch", False),
        products=frozenset(_product_key(product) for product in entry.get("products", ())),
    )


def _key(name: str) -> str:
    """`RTX 4090`, `rtx-4090` and `rtx_4090` as one word."""
    return re.sub(r"[\s_-]+", "", name).lower()


def _product_key(product: str) -> str:
    return _key(_without_brand(product))


def _without_brand(product: str) -> str:
    """`NVIDIA GeForce RTX 4090` as `RTX 4090`."""
    return " ".join(word for word in product.split() if word.lower() not in _BRANDS)


def _listed_device(name: Any) -> Device | None:
    key = _key(str(name))
    return next((listed.device for listed in _listed() if _key(listed.device.name) == key), None)


def _named_arch(name: Any) -> tuple[str, Arch, str] | None:
    """(kind, arch, canonical name) of "sm_90", "sm_90a", "9.0" or "gfx942"; None if it names no architecture."""
    key = _key(str(name))
    if found := re.fullmatch(r"sm(\d+)(\d)[af]?", key) or re.fullmatch(r"(\d+)\.(\d+)", key):
        major, minor = int(found[1]), int(found[2])
        return "cuda", (major, minor), f"sm_{major}{minor}"
    if found := re.fullmatch(r"gfx(\d+)([0-9a-f])[0-9a-f]", key):  # the last digit is the stepping
        return "rocm", (int(found[1]), int(found[2], 16)), key
    return None


def _arch_device(name: Any) -> Device | None:
    named = _named_arch(name)
    if named is None:
        return None
    kind, arch, shown = named
    stand_in = _representative(kind, arch)
    return replace(stand_in, name=shown) if stand_in else Device(kind=kind, name=shown, arch=arch)


def _representative(kind: str, arch: Arch | None) -> Device | None:
    candidates = (listed.device for listed in _listed() if listed.represents_arch)
    return next((device for device in candidates if (device.kind, device.arch) == (kind, arch)), None)


# The real machine.


@cache
def _current_gpu(index: int) -> Device | None:
    from attn_backends.device_probe import gpu_facts

    measured = gpu_facts(index)
    return None if measured is None else _merged(measured)


@cache
def _current_cpu() -> Device:
    from attn_backends.device_probe import cpu_facts

    return Device(kind="cpu", name="cpu", **cpu_facts())


def _merged(measured: dict[str, Any]) -> Device:
    """What the machine says, over what the data file knows of that product."""
    facts = dict(measured)
    product = facts.pop("product")
    key = _product_key(product)
    known = next((listed.device for listed in _listed() if key in listed.products), None)
    if known is None:
        device = Device(**{"name": _without_brand(product), **facts})
        return replace(device, exp_rate=_scaled_exp_rate(device))
    if _same_bandwidth(facts.get("memory_bandwidth"), known.memory_bandwidth):
        facts.pop("memory_bandwidth", None)
    return replace(known, **{**facts, "name": known.name})


def _same_bandwidth(measured: float | None, stated: float | None) -> bool:
    """Whether the datasheet's figure holds: a 40 GB A100 is not the 80 GB one of the data file."""
    if measured is None or stated is None:
        return True
    return abs(measured - stated) <= _DATASHEET_ROUNDING * stated


def _scaled_exp_rate(device: Device) -> float | None:
    """Exponentials per clock and multiprocessor are the architecture's; None where something is unknown."""
    stand_in = _representative(device.kind, device.arch)
    if stand_in is None or not (stand_in.exp_rate and stand_in.num_sms and stand_in.clock_hz):
        return None
    if not (device.num_sms and device.clock_hz):
        return None
    return stand_in.exp_rate * (device.num_sms * device.clock_hz) / (stand_in.num_sms * stand_in.clock_hz)
