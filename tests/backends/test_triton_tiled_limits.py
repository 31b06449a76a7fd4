"""`limits.check` refuses what no shipped tile fits, says so with numbers, and needs neither torch nor triton."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from attn_backends.backends.triton_tiled import configs as configs_module
from attn_backends.backends.triton_tiled import limits as limits_module
from attn_backends.backends.triton_tiled.configs import DIRECTIONS, Config, Traits, config_for, configs, padded
from attn_backends.backends.triton_tiled.limits import check
from attn_backends.device import Device
from attn_backends.request import Request

TRAINING: dict[str, Any] = {"needs_backward": True, "bias": True, "grad_bias": True}
DEVICES = ("a100", "a10", "l40s", "rtx 4090", "h100", "h200", "b200", "rtx 5090", "sm_87", "sm_103", "sm_121")
ARCHITECTURES = (80, 86, 87, 89, 90, 100, 103, 110, 120, 121)


def request(width: int, dtype: str = "bfloat16", **features: Any) -> Request:
    return Request(
        dtype=dtype, seq_q=128, seq_k=128, num_q_heads=4, num_kv_heads=2, head_dim_qk=width, head_dim_v=width, **features
    )  # fmt: skip


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("width", [1, 40, 64, 72, 128, 192, 256])
def test_every_width_and_dtype_of_the_manifest_has_tiles(name: str, dtype: str, width: int) -> None:
    """Forward and every gradient, on every device that the manifest's box holds."""
    device = Device.pretend(name)
    assert check(request(width, dtype), device) == []
    assert check(request(width, dtype, **TRAINING, dropout_p=0.1, softcap=5.0, alibi=True), device) == []


def test_a_device_with_less_shared_memory_is_refused_with_numbers() -> None:
    """The reason names the kernel, the bytes that are wanted and the bytes that are there."""
    device = Device.pretend("h200", smem_bytes=80_000)
    (reason,) = check(request(256), device)
    needed = max(row.shared for row in configs()["forward"] if row.arch <= 90 <= row.last_arch and row.bytes == 2)
    assert (reason.code, reason.axis, reason.got) == ("smem", "head_dim", 256)
    assert reason.want.startswith("<= ")
    assert "forward" in str(reason)
    assert f"{needed} bytes" in str(reason)
    assert "80000" in str(reason)


def test_the_widest_head_that_fits_is_named_and_fits() -> None:
    """`want` is a bound that the same check accepts."""
    device = Device.pretend("l40s", smem_bytes=50_000)
    (reason,) = check(request(256), device)
    widest = int(reason.want.removeprefix("<= "))
    assert check(request(widest), device) == []
    assert check(request(2 * widest), device)


def test_where_nothing_fits_no_width_is_promised() -> None:
    """An architecture without rows, and a device with next to no shared memory."""
    assert check(request(64), Device.pretend("sm_70"))[0].want == "no width"
    assert check(request(64), Device.pretend("a100", smem_bytes=1024))[0].want == "no width"


def test_backward_is_checked_only_where_asked() -> None:
    """One reason per kernel of the call: a forward needs none of the others."""
    device = Device.pretend("a100", smem_bytes=1024)
    assert len(check(request(64), device)) == 1
    assert len(check(request(64, needs_backward=True), device)) == 3
    assert len(check(request(64, **TRAINING), device)) == 4


def test_an_unknown_device_is_not_refused() -> None:
    """Nothing is known of its shared memory, so nothing is said about it."""
    assert check(request(256), Device.pretend("sm_87", smem_bytes=None)) == []


def test_what_boxes_refuse_is_left_to_them() -> None:
    """Other kinds of devices and dtypes have their own reasons."""
    assert check(request(64), Device.pretend("cpu")) == []
    assert check(request(64), Device.pretend("mi300x")) == []
    assert check(request(64, "float64"), Device.pretend("h200")) == []


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_row_can_be_chosen(direction: str) -> None:
    """A row that an earlier one always takes the calls of is dead data."""
    reached = {
        config_for(direction, arch, size, width, Traits(described=described, aligned=aligned, extras=extras))
        for arch in (0, *ARCHITECTURES)
        for size in (2, 4)
        for width in (16, 32, 64, 128, 256)
        for described in (False, True)
        for aligned in (False, True)
        for extras in range(13)
    }
    assert set(configs()[direction]) - reached == set()
    assert None not in reached


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_interpreter_has_small_tiles(direction: str) -> None:
    """A tile costs the interpreter milliseconds whatever its size; tests want several tiles of few rows."""
    row = config_for(direction, 0, 4, 64, Traits(described=True, aligned=True, extras=0))
    assert row is not None
    assert max(row.rows, row.columns) <= 32


def test_a_row_that_outgrew_the_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound comes from the data: one byte more in a row, and the call is refused."""
    limit = Device.pretend("h200").smem_bytes
    assert limit is not None

    def rows(shared: int) -> dict[str, tuple[Config, ...]]:
        row = Config(arch=80, bytes=4, width=256, rows=64, columns=64, warps=4, stages=2, shared=shared)
        return dict.fromkeys(DIRECTIONS, (row,))

    def forget() -> None:
        configs_module.config_for.cache_clear()
        limits_module._largest.cache_clear()

    for shared, refused in ((limit, False), (limit + 1, True)):
        forget()
        monkeypatch.setattr(configs_module, "configs", lambda shared=shared: rows(shared))
        assert bool(check(request(64), Device.pretend("h200"))) is refused
    monkeypatch.undo()
    forget()


def test_the_check_loads_no_torch() -> None:
    """`select` runs it in processes that have neither torch nor triton."""
    code = (
        "import sys; sys.modules.update(torch=None, triton=None)\n"
        "from attn_backends.backends.triton_tiled.limits import check\n"
        "from attn_backends.device import Device; from attn_backends.request import Request\n"
        "r = Request(dtype='float16', seq_q=8, seq_k=8, num_q_heads=1, num_kv_heads=1, head_dim_qk=64, head_dim_v=64)\n"
        "assert check(r, Device.pretend('h200')) == []\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_padding_is_a_power_of_two() -> None:
    """Tiles are at least 16 wide, which is what a matrix product wants."""
    assert [padded(width) for width in (1, 16, 17, 40, 72, 192, 256)] == [16, 16, 32, 64, 128, 256, 256]
