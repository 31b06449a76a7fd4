"""Device facts: the data file, pretended devices, JSON, and the real machine asked through fakes."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attn_backends import device as device_module
from attn_backends import device_probe
from attn_backends.capability import DEVICE_KINDS
from attn_backends.device import KINDS, Device
from attn_backends.errors import RequestError

DATA = tomllib.loads(Path(device_module.__file__).with_name("devices.toml").read_text(encoding="utf-8"))["device"]
GPUS = [entry for entry in DATA if entry["kind"] != "cpu"]
GPU_FACTS = (
    "arch", "num_sms", "smem_bytes", "smem_per_sm_bytes", "registers_per_sm", "l2_bytes", "memory_bytes",
    "memory_bandwidth", "matrix_rates", "exp_rate", "clock_hz",
)  # fmt: skip


def name_of(entry: dict[str, Any]) -> str:
    """A readable test id."""
    return str(entry["name"])


@pytest.fixture(autouse=True)
def fresh_machine() -> Iterator[None]:
    """No test sees the machine that another one faked."""
    device_module.reset()
    yield
    device_module.reset()


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine with no GPU of any make."""
    monkeypatch.setattr(device_probe, "load_driver", lambda: None)
    monkeypatch.setattr(device_probe, "KFD_NODES", tmp_path / "none")
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("ROCR_VISIBLE_DEVICES", raising=False)
    return monkeypatch


# The data file.


@pytest.mark.parametrize("entry", DATA, ids=name_of)
def test_every_device_has_a_source(entry: dict[str, Any]) -> None:
    """Each entry of the data file names at least one public source with its address."""
    assert entry["sources"]
    assert all("https://" in source for source in entry["sources"])


@pytest.mark.parametrize("entry", GPUS, ids=name_of)
def test_every_gpu_has_the_facts_that_selection_needs(entry: dict[str, Any]) -> None:
    """No GPU of the data file leaves a fact out, float16 products among them."""
    assert [fact for fact in GPU_FACTS if fact not in entry] == []
    assert Device.pretend(entry["name"]).matrix_rate("float16") is not None


@pytest.mark.parametrize("entry", GPUS, ids=name_of)
def test_exponentials_are_sixteen_per_clock_and_multiprocessor(entry: dict[str, Any]) -> None:
    """`exp_rate` agrees with clock and multiprocessors, so that a mistyped figure shows."""
    assert entry["exp_rate"] == pytest.approx(16 * entry["num_sms"] * entry["clock_hz"], rel=0.01)


@pytest.mark.parametrize("entry", [e for e in GPUS if e["kind"] == "cuda"], ids=name_of)
def test_matrix_rates_are_dense(entry: dict[str, Any]) -> None:
    """float16 is a power of two of FLOP per clock and multiprocessor, and that of its architecture, not its double."""
    dense = {"sm_70": {1024}, "sm_80": {2048}, "sm_86": {512, 1024}, "sm_89": {512, 1024}, "sm_90": {4096}}
    dense |= {"sm_100": {8192}, "sm_120": {512}}
    per_clock = entry["matrix_rates"]["float16"] / (entry["num_sms"] * entry["clock_hz"])
    assert any(per_clock == pytest.approx(flop, rel=0.02) for flop in dense[entry["arch"]])


@pytest.mark.parametrize("entry", [e for e in GPUS if e["kind"] == "cuda"], ids=name_of)
def test_a_block_gets_all_but_a_kilobyte_of_shared_memory(entry: dict[str, Any]) -> None:
    """The opt-in limit is the multiprocessor's shared memory less the reserved kilobyte (sm_70 reserves none)."""
    reserved = 0 if entry["arch"] == "sm_70" else 1024
    assert entry["smem_per_sm_bytes"] - entry["smem_bytes"] == reserved


def test_each_architecture_has_one_representative() -> None:
    """A name such as sm_89 stands for exactly one device's facts."""
    represented = [entry["arch"] for entry in GPUS if entry.get("represents_arch")]
    assert sorted(represented) == sorted({entry["arch"] for entry in GPUS})


def test_kinds_are_those_of_the_table() -> None:
    """The device axis and `Device` know the same kinds."""
    assert KINDS == DEVICE_KINDS


# Pretended devices.


@pytest.mark.parametrize("name", ["RTX 4090", "rtx 4090", "rtx-4090", "rtx_4090", "RTX4090", " Rtx-4090 "])
def test_spelling_of_a_name_does_not_matter(name: str) -> None:
    """Case, spaces, dashes and underscores are free."""
    assert Device.pretend(name) == Device.pretend("RTX 4090")


@pytest.mark.parametrize("name", Device.pretendable())
def test_every_listed_name_can_be_pretended(name: str) -> None:
    """What `pretendable` lists, `pretend` takes, and shows under that name."""
    pretended = Device.pretend(name)
    assert pretended.name == name
    assert pretended.pretended
    assert pretended.memory_bandwidth is not None


@pytest.mark.parametrize(
    ("name", "kind", "arch", "shown"),
    [
        ("sm_90", "cuda", (9, 0), "sm_90"),
        ("SM-90a", "cuda", (9, 0), "sm_90"),
        ("9.0", "cuda", (9, 0), "sm_90"),
        ("sm_100", "cuda", (10, 0), "sm_100"),
        ("12.0", "cuda", (12, 0), "sm_120"),
        ("gfx942", "rocm", (9, 4), "gfx942"),
    ],
)
def test_an_architecture_has_its_representatives_facts(name: str, kind: str, arch: Any, shown: str) -> None:
    """A whole architecture can be pretended by any of its spellings."""
    pretended = Device.pretend(name)
    assert (pretended.kind, pretended.arch, pretended.name) == (kind, arch, shown)
    assert pretended.smem_bytes is not None


@pytest.mark.parametrize(
    ("name", "kind", "arch"),
    [("sm_87", "cuda", (8, 7)), ("10.3", "cuda", (10, 3)), ("gfx90a", "rocm", (9, 0)), ("gfx1100", "rocm", (11, 0))],
)
def test_an_unlisted_architecture_has_no_facts(name: str, kind: str, arch: tuple[int, int]) -> None:
    """Nothing is guessed for an architecture that the data file does not know."""
    pretended = Device.pretend(name)
    assert pretended.to_json() == {"kind": kind, "name": pretended.name, "arch": list(arch), "pretended": True}


@pytest.mark.parametrize(
    ("name", "near"),
    [("h20", "h200"), ("rtx 4091", "rtx_4090"), ("sm_9", "sm_90"), ("mi300", "mi300x"), ("", "do not matter")],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, near: str) -> None:
    """The error says what was asked, what is allowed, and what was probably meant."""
    with pytest.raises(RequestError) as caught:
        Device.pretend(name)
    text = str(caught.value)
    assert text.startswith(f"device: got {name!r}; allowed: v100, a100, ")
    assert "rtx_4090, h100, h200" in text
    assert "or an architecture such as sm_90, 9.0 or gfx942" in text
    assert near in text


@pytest.mark.parametrize(
    ("overrides", "field", "value"),
    [
        ({"num_sms": 16}, "num_sms", 16),
        ({"arch": [9, 1]}, "arch", (9, 1)),
        ({"arch": "sm_80"}, "arch", (8, 0)),
        ({"arch": None}, "arch", None),
        ({"matrix_rates": {"int8": 2, "float16": 1}}, "matrix_rates", (("float16", 1.0), ("int8", 2.0))),
        ({"memory_bytes": None}, "memory_bytes", None),
    ],
)
def test_overrides_set_fields(overrides: dict[str, Any], field: str, value: Any) -> None:
    """A pretended device can differ from the listed one in any field, in plain values."""
    pretended = Device.pretend("h200", **overrides)
    assert getattr(pretended, field) == value
    assert pretended.l2_bytes == Device.pretend("h200").l2_bytes
    assert isinstance(hash(pretended), int)


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ({"num_sm": 1}, "num_sm: got 1; allowed: a device field. did you mean num_sms"),
        ({"num_sms": 0}, "num_sms: got 0; allowed: a positive number or none"),
        ({"clock_hz": True}, "clock_hz: got True; allowed: a positive number or none"),
        ({"arch": "hopper"}, "arch: got 'hopper'"),
        ({"arch": [9, -1]}, "arch: got (9, -1)"),
        ({"kind": "coda"}, "kind: got 'coda'; allowed: cuda | rocm | cpu | mps | xpu. did you mean cuda?"),
        ({"matrix_rates": {"int8": -1}}, "matrix_rates: got {'int8': -1}"),
        ({"matrix_rates": 3}, "matrix_rates: got 3"),
    ],
)
def test_an_impossible_override_is_an_error(overrides: dict[str, Any], text: str) -> None:
    """A field that does not exist, or a value it cannot have, is named with what would be legal."""
    with pytest.raises(RequestError) as caught:
        Device.pretend("h200", **overrides)
    assert text in str(caught.value)


# The record.


@pytest.mark.parametrize("name", [*Device.pretendable(), "sm_87"])
def test_json_keeps_everything(name: str) -> None:
    """A device read back from JSON text is equal to the one written, and hashes alike."""
    original = Device.pretend(name)
    again = Device.from_json(json.loads(json.dumps(original.to_json())))
    assert again == original
    assert hash(again) == hash(original)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"kind": "cuda", "name": "x", "l2_byte": 1}, "l2_byte: got 1; allowed: a device field. did you mean l2_bytes"),
        ({"name": "x"}, "kind: got None"),
        ({"kind": "cuda"}, "name: got None"),
    ],
)
def test_json_with_strange_or_missing_keys_is_an_error(data: dict[str, Any], text: str) -> None:
    """Reading refuses keys it does not know, with the nearest one, and records without kind or name."""
    with pytest.raises(RequestError) as caught:
        Device.from_json(data)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("h200", "H200 (cuda, sm_90)"),
        ("sm_90", "sm_90 (cuda)"),
        ("b200", "B200 (cuda, sm_100)"),
        ("mi300x", "MI300X (rocm, gfx942)"),
        ("gfx942", "gfx942 (rocm)"),
        ("gfx1100", "gfx1100 (rocm, 11.0)"),
        ("cpu", "cpu"),
    ],
)
def test_describe_is_one_line(name: str, line: str) -> None:
    """`describe` says name, kind and architecture, each once."""
    assert Device.pretend(name).describe() == line


@pytest.mark.parametrize(
    ("device", "dtype", "rate"),
    [("h200", "bfloat16", 989.4e12), ("v100", "bfloat16", None), ("mi300x", "float8_e4m3fn", None)],
)
def test_matrix_rate_is_unknown_where_the_unit_lacks_the_dtype(device: str, dtype: str, rate: float | None) -> None:
    """A dtype without matrix unit has no rate, rather than zero."""
    assert Device.pretend(device).matrix_rate(dtype) == rate


# The real machine, through fakes.

H200_ATTRIBUTES = {
    75: 9, 76: 0, 16: 132, 97: 232_448, 81: 233_472, 82: 65_536, 38: 62_000_000, 13: 1_980_000, 36: 3_201_000, 37: 6016,
}  # fmt: skip


class FakeDriver:
    """One GPU that answers like the NVIDIA driver library; `broken` names calls that fail."""

    def __init__(self, name: str, attributes: dict[int, int], memory: int = 150_000_000_000, broken: str = "") -> None:
        self.name, self.attributes, self.memory, self.broken = name, attributes, memory, broken
        self.calls: list[str] = []

    initialized = True

    def __getattr__(self, call: str) -> Any:
        return lambda *arguments: self._answer(call, *arguments)

    def _answer(self, call: str, *arguments: Any) -> int:
        self.calls.append(call)
        return 999 if call == self.broken else int(getattr(self, f"_{call}")(*arguments))

    def _cuCtxGetCurrent(self, _context: Any) -> int:  # noqa: N802  # the driver's own name
        return 0 if self.initialized else device_probe.NOT_INITIALIZED

    def _cuInit(self, flags: int) -> int:  # noqa: N802
        return flags

    def _cuDeviceGet(self, handle: Any, index: Any) -> int:  # noqa: N802
        handle._obj.value = 7
        return 0 if index.value == 0 else 101

    def _cuDeviceGetAttribute(self, value: Any, code: Any, handle: Any) -> int:  # noqa: N802
        value._obj.value = self.attributes.get(code.value, 0)
        return 0 if handle.value == 7 and code.value in self.attributes else 1

    def _cuDeviceGetName(self, text: Any, _length: Any, _handle: Any) -> int:  # noqa: N802
        text.value = self.name.encode()
        return 0

    def _cuDeviceTotalMem_v2(self, value: Any, _handle: Any) -> int:  # noqa: N802
        value._obj.value = self.memory
        return 0


def install(patch: pytest.MonkeyPatch, driver: Any) -> None:
    """Make `driver` the machine's NVIDIA driver."""
    patch.setattr(device_probe, "load_driver", lambda: driver)


def test_the_machine_wins_over_the_data_file(bare_machine: pytest.MonkeyPatch) -> None:
    """Measured facts replace listed ones; rates that only the data file has are kept, the datasheet bandwidth too."""
    install(bare_machine, FakeDriver("NVIDIA H200", H200_ATTRIBUTES))
    found, listed = Device.current(), Device.pretend("h200")
    assert (found.kind, found.name, found.arch, found.pretended) == ("cuda", "H200", (9, 0), False)
    assert (found.l2_bytes, found.memory_bytes, found.clock_hz) == (62_000_000, 150_000_000_000, 1.98e9)
    assert (found.matrix_rates, found.exp_rate) == (listed.matrix_rates, listed.exp_rate)
    assert found.memory_bandwidth == 4.8e12


def test_a_measured_bandwidth_far_from_the_datasheet_wins(bare_machine: pytest.MonkeyPatch) -> None:
    """A 40 GB A100 does not get the bandwidth of the 80 GB one."""
    attributes = {75: 8, 76: 0, 16: 108, 36: 1_215_000, 37: 5120}
    install(bare_machine, FakeDriver("NVIDIA A100-SXM4-40GB", attributes, memory=42_000_000_000))
    assert Device.current().memory_bandwidth == pytest.approx(1.555e12, rel=0.001)
    assert Device.current().matrix_rate("bfloat16") == 312e12


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA H200 MIG 1g.18gb", "H200 MIG 1g.18gb"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090 Laptop GPU"),
    ],
)
def test_a_similar_product_is_not_taken_for_a_listed_one(
    bare_machine: pytest.MonkeyPatch, product: str, name: str
) -> None:
    """A slice, a variant or a namesake has what was measured, exponentials in proportion, and no foreign rates."""
    install(bare_machine, FakeDriver(product, {**H200_ATTRIBUTES, 16: 16}))
    found = Device.current()
    assert (found.name, found.num_sms, found.matrix_rates) == (name, 16, ())
    assert found.exp_rate == pytest.approx(16 * 16 * 1.98e9, rel=0.01)
    assert found.memory_bandwidth == pytest.approx(2 * 3.201e9 * 6016 / 8)


def test_an_attribute_that_the_driver_refuses_is_unknown(bare_machine: pytest.MonkeyPatch) -> None:
    """An old driver that lacks an attribute leaves that one fact out."""
    install(bare_machine, FakeDriver("NVIDIA X", {75: 8, 76: 7, 16: 4}))
    found = Device.current()
    assert (found.arch, found.num_sms, found.smem_bytes, found.memory_bandwidth) == ((8, 7), 4, None, None)


@pytest.mark.parametrize("broken", ["cuInit", "cuDeviceGet"])
def test_a_broken_driver_is_no_gpu(bare_machine: pytest.MonkeyPatch, broken: str) -> None:
    """A driver without devices leaves the CPU, and never raises."""
    install(bare_machine, FakeDriver("NVIDIA H200", H200_ATTRIBUTES, broken=broken))
    assert Device.current().kind == "cpu"


def test_a_library_that_is_no_driver_is_no_gpu(bare_machine: pytest.MonkeyPatch) -> None:
    """A library without the driver's functions leaves the CPU, and never raises."""
    install(bare_machine, object())
    assert Device.current().kind == "cpu"


def test_no_context_is_created(bare_machine: pytest.MonkeyPatch) -> None:
    """Asking the driver stays below the level at which memory on the GPU is taken."""
    driver = FakeDriver("NVIDIA H200", H200_ATTRIBUTES)
    install(bare_machine, driver)
    Device.current()
    harmless = ("cuInit", "cuCtxGetCurrent", "cuDeviceTotalMem_v2")
    assert all(call in harmless or call.startswith("cuDeviceGet") for call in driver.calls)


def test_the_machine_is_asked_once(bare_machine: pytest.MonkeyPatch) -> None:
    """The answer is kept for the process, until `reset`."""
    driver = FakeDriver("NVIDIA H200", H200_ATTRIBUTES)
    install(bare_machine, driver)
    assert Device.current() is Device.current()
    assert driver.calls.count("cuInit") == 1
    device_module.reset()
    Device.current()
    assert driver.calls.count("cuInit") == 2


def test_a_cpu_knows_its_cores_and_memory(bare_machine: pytest.MonkeyPatch) -> None:
    """Without a GPU the device is the CPU, with facts that cost nothing to ask."""
    found = Device.current()
    assert (found.kind, found.name, found.arch) == ("cpu", "cpu", None)
    assert found.num_sms is not None
    assert found.memory_bytes is not None


def write_node(nodes: Path, number: int, **properties: int) -> None:
    """One node of the kernel's topology, with a bank of system memory and one of its own."""
    node = nodes / str(number)
    for bank, about in {"0": "heap_type 0\nsize_in_bytes 5\n", "1": "heap_type 1\nsize_in_bytes 9000\n"}.items():
        (node / "mem_banks" / bank).mkdir(parents=True)
        (node / "mem_banks" / bank / "properties").write_text(about)
    (node / "properties").write_text("".join(f"{name} {value}\n" for name, value in properties.items()))


@pytest.fixture
def rocm_machine(bare_machine: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A CPU node, an MI300X and a consumer card."""
    nodes = tmp_path / "nodes"
    write_node(nodes, 0, cpu_cores_count=96, gfx_target_version=0)
    mi300x = {"gfx_target_version": 90402, "simd_count": 1216, "simd_per_cu": 4, "vendor_id": 4098, "device_id": 0x74A1}
    write_node(nodes, 2, **mi300x, lds_size_in_kb=64, max_engine_clk_fcompute=2100)
    write_node(nodes, 10, gfx_target_version=110000, simd_count=192, simd_per_cu=2, vendor_id=4098, device_id=0x744C)
    bare_machine.setattr(device_probe, "KFD_NODES", nodes)
    return bare_machine


def test_a_rocm_gpu_is_read_from_the_topology(rocm_machine: pytest.MonkeyPatch) -> None:
    """Nodes are counted in numeric order, CPUs left out; known PCI ids have the listed rates."""
    found = Device.of("cuda", 0)
    assert (found.kind, found.name, found.arch, found.num_sms) == ("rocm", "MI300X", (9, 4), 304)
    assert (found.memory_bytes, found.memory_bandwidth) == (9000, 5.3e12)
    other = Device.of("cuda", 1)
    assert (other.name, other.arch, other.num_sms, other.matrix_rates) == ("gfx1100", (11, 0), 96, ())


def test_rocm_visibility_orders_the_gpus(rocm_machine: pytest.MonkeyPatch) -> None:
    """Index 0 is the first GPU that the process may see, as in a framework."""
    rocm_machine.setenv("HIP_VISIBLE_DEVICES", "1")
    assert Device.current(0).name == "gfx1100"
    assert Device.current(1).kind == "cpu"


@pytest.mark.parametrize(
    ("kind", "index", "expected"),
    [("cpu", None, "cpu"), ("mps", 0, "mps"), ("xpu", 0, "xpu"), ("cuda", 3, "cuda"), ("cuda", None, "cuda")],
)
def test_of_answers_for_every_torch_device_type(
    bare_machine: pytest.MonkeyPatch, kind: str, index: int | None, expected: str
) -> None:
    """A device that cannot be asked keeps its kind, so that no backend of another kind is chosen for it."""
    assert Device.of(kind, index).kind == expected


def test_of_refuses_an_unknown_type(bare_machine: pytest.MonkeyPatch) -> None:
    """A type that no backend can declare is a request error with the nearest kind."""
    with pytest.raises(RequestError, match=r"kind: got 'hpu'; allowed: cuda \| rocm .* did you mean xpu, cpu"):
        Device.of("hpu", 0)


def test_importing_and_pretending_loads_nothing_heavy() -> None:
    """In a fresh interpreter, `Device` works without torch, triton, numba, numpy, ctypes or any hook machinery."""
    code = (
        "import sys; from attn_backends.device import Device; assert 'tomllib' not in sys.modules; "
        "Device.pretend('h200'); "
        "heavy = {'torch', 'triton', 'numba', 'numpy', 'pluggy', 'ctypes'} & set(sys.modules); assert not heavy, heavy"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_asking_the_real_machine_never_raises() -> None:
    """Whatever is in this machine, `current` describes it, and index 99 falls back to the CPU."""
    assert Device.current().describe()
    assert Device.current(99).kind == "cpu"


def test_a_driver_at_rest_is_asked_by_a_child(bare_machine: pytest.MonkeyPatch) -> None:
    """This process never calls `cuInit` itself, so that it may fork later and use CUDA in the children."""
    driver = FakeDriver("NVIDIA H200", H200_ATTRIBUTES)
    driver.initialized = False
    install(bare_machine, driver)
    facts = {"kind": "cuda", "product": "NVIDIA H200", "arch": (9, 0), "num_sms": 132}
    bare_machine.setattr(device_probe, "ask_child", lambda index: facts if index == 0 else None)
    assert (Device.current().name, Device.current().num_sms) == ("H200", 132)
    assert "cuInit" not in driver.calls


def test_the_child_answers_in_json_without_this_package() -> None:
    """The probe file runs alone, isolated from site-packages, and says null where there is no driver."""
    answer = subprocess.run(
        [sys.executable, "-I", "-S", device_probe.__file__, "99"], capture_output=True, text=True, check=True
    )
    assert json.loads(answer.stdout) is None
