"""What the machine itself says about its GPUs and its CPU, without torch and without a CUDA context.

NVIDIA: the driver library through ctypes; AMD: the kernel's topology files. Only `device.py` imports this, and only when
asked for the real machine. Everything here answers None, or leaves a fact out, where the machine does not know.

A process that called `cuInit` cannot use CUDA in children it forks later, which serving engines do. So, unless CUDA is
up in this process already, the driver is asked by a child: this file, run as a script.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

Facts = dict[str, Any]  # fields of `Device`, and "product": the name under which the data file may know it

DRIVER_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED
CHILD_SECONDS = 30
KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")

# CUdevice_attribute, from the CUDA driver API reference; the factor turns the driver's unit into ours.
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76
MEMORY_CLOCK_KHZ, MEMORY_BUS_BITS = 36, 37
ATTRIBUTES = {
    "num_sms": (16, 1),  # MULTIPROCESSOR_COUNT
    "smem_bytes": (97, 1),  # MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    "smem_per_sm_bytes": (81, 1),  # MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
    "registers_per_sm": (82, 1),  # MAX_REGISTERS_PER_MULTIPROCESSOR
    "l2_bytes": (38, 1),  # L2_CACHE_SIZE
    "clock_hz": (13, 1000),  # CLOCK_RATE, kHz
}
TRANSFERS_PER_CLOCK = 2  # every memory that CUDA devices use is reported at half its data rate


def gpu_facts(index: int) -> Facts | None:
    """The GPU that a framework would call `index`, NVIDIA before AMD; None where there is no such GPU."""
    try:
        driver = load_driver()
        facts = None if driver is None else _asked(driver, index)
        return facts or rocm_facts(index)
    except (OSError, AttributeError, ValueError):  # an old or broken driver is no GPU
        return None


def _asked(driver: Any, index: int) -> Facts | None:
    if is_initialized(driver):
        return cuda_facts(driver, index)
    try:
        return ask_child(index)
    except (OSError, ValueError, subprocess.SubprocessError):  # no child to be had: better here than not at all
        return cuda_facts(driver, index)


def is_initialized(driver: Any) -> bool:
    """Whether somebody called `cuInit` in this process (every other driver call says so)."""
    context = ctypes.c_void_p()
    return bool(driver.cuCtxGetCurrent(ctypes.byref(context)) != NOT_INITIALIZED)


def ask_child(index: int) -> Facts | None:
    """`cuda_facts` from a child process, which knows nothing but this file. Raises for a child that fails."""
    command = [sys.executable, "-I", "-S", __file__, str(index)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS, check=True)  # noqa: S603  # our own file
    facts: Facts | None = json.loads(answer.stdout)
    if facts is not None and facts.get("arch") is not None:
        facts["arch"] = tuple(facts["arch"])
    return facts


def load_driver() -> Any | None:
    """The NVIDIA driver library, or None where none is installed."""
    for name in DRIVER_LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def cuda_facts(driver: Any, index: int) -> Facts | None:
    """Facts of the CUDA device `index` in the order of CUDA_VISIBLE_DEVICES; None if the driver has no such device.

    Calls `cuInit`, which fixes CUDA_VISIBLE_DEVICES for the process, and creates no context.
    """
    handle = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGet(ctypes.byref(handle), ctypes.c_int(index)) != 0:
        return None
    major, minor = (_attribute(driver, handle, code) for code in (CAPABILITY_MAJOR, CAPABILITY_MINOR))
    measured: Facts = {name: _attribute(driver, handle, code) * unit for name, (code, unit) in ATTRIBUTES.items()}
    measured["memory_bytes"] = _total_memory(driver, handle)
    measured["memory_bandwidth"] = _bandwidth(driver, handle)
    known = {name: value for name, value in measured.items() if value}
    arch = (major, minor) if major else None
    return {"kind": "cuda", "product": _name(driver, handle) or "cuda", "arch": arch, **known}


def _attribute(driver: Any, handle: ctypes.c_int, code: int) -> int:
    value = ctypes.c_int()
    status = driver.cuDeviceGetAttribute(ctypes.byref(value), ctypes.c_int(code), handle)
    return value.value if status == 0 else 0


def _name(driver: Any, handle: ctypes.c_int) -> str:
    text = ctypes.create_string_buffer(256)
    status = driver.cuDeviceGetName(text, ctypes.c_int(len(text)), handle)
    return text.value.decode(errors="replace") if status == 0 else ""


def _total_memory(driver: Any, handle: ctypes.c_int) -> int:
    value = ctypes.c_size_t()
    status = driver.cuDeviceTotalMem_v2(ctypes.byref(value), handle)
    return value.value if status == 0 else 0


def _bandwidth(driver: Any, handle: ctypes.c_int) -> float:
    clock_khz = _attribute(driver, handle, MEMORY_CLOCK_KHZ)
    bus_bits = _attribute(driver, handle, MEMORY_BUS_BITS)
    return TRANSFERS_PER_CLOCK * clock_khz * 1e3 * bus_bits / 8


def rocm_facts(index: int, nodes: Path | None = None) -> Facts | None:
    """Facts of the ROCm device `index` in the order of the visibility variables; None if there is no such device."""
    gpus = _visible(_gpu_nodes(nodes or KFD_NODES))
    if not 0 <= index < len(gpus):
        return None
    node, about = gpus[index]
    target = about["gfx_target_version"]  # gfx942 is 90402
    measured = {
        "num_sms": about.get("simd_count", 0) // (about.get("simd_per_cu") or 4),
        "smem_bytes": about.get("lds_size_in_kb", 0) * 1024,
        "smem_per_sm_bytes": about.get("lds_size_in_kb", 0) * 1024,
        "clock_hz": about.get("max_engine_clk_fcompute", 0) * 1_000_000,
        "memory_bytes": _local_memory(node),
    }
    return {
        "kind": "rocm",
        "product": f"{about.get('vendor_id', 0):04x}:{about.get('device_id', 0):04x}",
        "name": f"gfx{target // 10000}{target // 100 % 100:x}{target % 100:x}",
        "arch": (target // 10000, target // 100 % 100),
        **{name: value for name, value in measured.items() if value},
    }


def _gpu_nodes(nodes: Path) -> list[tuple[Path, dict[str, int]]]:
    if not nodes.is_dir():
        return []
    folders = sorted(nodes.iterdir(), key=lambda node: int(node.name))
    described = [(node, _properties(node / "properties")) for node in folders]
    return [(node, about) for node, about in described if about.get("gfx_target_version")]


def _properties(file: Path) -> dict[str, int]:
    """`name value` lines as a dict; a node that this user may not read is empty."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _visible(gpus: list[tuple[Path, dict[str, int]]]) -> list[tuple[Path, dict[str, int]]]:
    """Apply ROCR_VISIBLE_DEVICES, then HIP_VISIBLE_DEVICES, where they are lists of numbers."""
    for variable in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        chosen = [word.strip() for word in os.environ.get(variable, "").split(",")]
        if all(word.isdigit() for word in chosen):
            gpus = [gpus[int(word)] for word in chosen if int(word) < len(gpus)]
    return gpus


def _local_memory(node: Path) -> int:
    """Bytes of the node's own memory banks (heap types 1 and 2: frame buffer, public and private)."""
    banks = [_properties(bank / "properties") for bank in sorted(node.glob("mem_banks/*"))]
    return sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in (1, 2))


def cpu_facts() -> Facts:
    """Cores and memory of this machine's CPU."""
    facts: Facts = {"num_sms": os.cpu_count()}
    with contextlib.suppress(AttributeError, OSError, ValueError):  # not a POSIX system
        facts["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {name: value for name, value in facts.items() if value}


if __name__ == "__main__":
    loaded = load_driver()
    json.dump(None if loaded is None else cuda_facts(loaded, int(sys.argv[1])), sys.stdout)
