"""numba_mma says what eager says in float64: on a machine of numpy that follows the PTX manual, and on a GPU."""

from __future__ import annotations

import dataclasses
import struct
import threading

import numpy as np
import pytest
import torch

pytest.importorskip("numba", reason="the kernel is numba's")

from attn_backends.backends.numba_mma.config import FAR, Config
from attn_backends.backends.numba_mma.kernel import STAGES
from attn_backends.backends.numba_mma.limits import MOST, check
from attn_backends.backends.numba_mma.operands import capped, operands_of
from attn_backends.device import Device
from attn_backends.request import Request
from tests.backends import numba_mma_cases as table
from tests.backends import numba_mma_simulated as simulated
from tests.numba_driver.fake_driver import STREAM, FakeDriver

KINDS = [(64, "float16"), (64, "bfloat16"), (128, "float16"), (128, "bfloat16")]
CONFIGS = [Config(head_dim=head_dim, half=half) for head_dim, half in KINDS]
OTHERS = [Config(head_dim=128, half="bfloat16", warps=8), Config(head_dim=64, half="float16", lazy=True)]
FEATURES = ["plain", "causal", "window on both sides", "softcap", "packed, rows of nobody", "rows of a projection"]


def assert_right(call, half):
    found = table.difference(call)
    most_out, most_lse = table.LIMITS[half]
    assert found["out"] <= most_out, found
    assert found["lse"] <= most_lse, found


# --- the kernel's own Python, on a machine of numpy -------------------------------------------------------------------


def simulate(name, config):
    call = table.call_of(name, config.head_dim, getattr(torch, config.half), "cpu")
    simulated.run(call, dataclasses.replace(config, softcap=capped(call)))
    assert_right(call, config.half)


@pytest.mark.parametrize("name", table.CASES)
def test_simulated(name):
    """Every case, in one of the kinds by turns."""
    simulate(name, CONFIGS[list(table.CASES).index(name) % len(CONFIGS)])


def test_nan_that_a_row_sees_is_nan():
    """One key of NaN, which rows from its own on see: they say so, and are not taken for rows that saw nothing."""
    config = CONFIGS[0]
    call = table.call_of("causal", config.head_dim, getattr(torch, config.half), "cpu")
    batch, seq_q, seq_k = call.q.shape[0], call.q.shape[1], call.k.shape[1]
    key = seq_k // 2
    call.k[:, key] = torch.nan
    simulated.run(call, dataclasses.replace(config, softcap=capped(call)))
    sees = torch.arange(seq_q) + (seq_k - seq_q) >= key
    assert 0 < int(sees.sum()) < seq_q
    lost = call.out.float().isnan().all(dim=-1)
    assert torch.equal(lost, sees[None, :, None].expand(batch, seq_q, call.q.shape[2]))
    assert torch.equal(call.lse.isnan(), sees[None, None].expand(batch, call.q.shape[2], seq_q))


@pytest.mark.slow
@pytest.mark.parametrize("config", OTHERS, ids=lambda one: f"{one.head_dim} {one.half} {one.warps} {one.lazy}")
def test_simulated_in_other_kinds(config):
    """What is not shipped but can be asked for: of it, the case with the most in it."""
    simulate("packed, rows of nobody", config)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "config", [*CONFIGS, *OTHERS], ids=lambda one: f"{one.head_dim} {one.half} {one.warps} {one.lazy}"
)
@pytest.mark.parametrize("name", FEATURES)
def test_simulated_in_every_kind(name, config):
    simulate(name, config)


# --- fragments and addresses, stage by stage --------------------------------------------------------------------------


class Watched(simulated.Warp):
    """A warp that notes where it reads and writes shared memory, eight or 32 threads at a time."""

    def __init__(self, *args):
        super().__init__(*args)
        self.eights, self.words = [], []

    def ldmatrix(self, address, *, transposed=False):
        self.eights += list(address.reshape(4, 8))
        return super().ldmatrix(address, transposed=transposed)

    def copy_async(self, shared, address, size):
        self.eights += list(shared.reshape(4, 8))
        super().copy_async(shared, address, size)

    def load_shared(self, address):
        self.eights += list(address.reshape(4, 8))
        return super().load_shared(address)

    def store_shared(self, address, number):
        self.words.append(address)
        super().store_shared(address, number)


@pytest.fixture(params=CONFIGS, ids=lambda one: f"{one.head_dim} {one.half}")
def config(request):
    return request.param


def half_numbers(rows, config):
    """(as torch has them in memory, as float64)."""
    numbers = torch.randn(rows, config.head_dim).to(getattr(torch, config.half))
    return numbers, numbers.double().numpy()


def warps_of(config, *tensors):
    block = simulated.Block(config, (0, 0, 0), (1, 1, 1), [simulated.span_of(one) for one in tensors])
    return [Watched(block, config, number) for number in range(config.warps)]


def copied(warps, config, stage, shared, tensor, rows):
    """A tile in shared memory, by all warps."""
    for warp in warps:
        step = 2 * config.head_dim
        share = STAGES["share_of"].function(warp, config, tensor.data_ptr(), step)
        STAGES[stage].function(warp, config, shared, share, step, rows)
        warp.commit()
        warp.wait(0)


def unfolded(registers, width):
    """[16, width]: a warp's sums as a matrix, from the table of the manual."""
    found = np.empty((16, width), np.float32)
    for at, register in enumerate(registers):
        row = simulated.LANES // 4 + 8 * (at % 4 // 2)
        found[row, 8 * (at // 4) + 2 * (simulated.LANES % 4) + at % 2] = register
    return found


def test_scores_are_the_product_of_q_and_k(config):
    """Copies, swizzle, ldmatrix and fragments together: the plain product of numpy, in every warp."""
    (q, right_q), (k, right_k) = half_numbers(config.rows, config), half_numbers(64, config)
    warps = warps_of(config, q, k)
    copied(warps, config, "copy_queries", simulated.BASE + config.stage_bytes, q, config.rows)
    copied(warps, config, "copy_keys", simulated.BASE, k, 64)
    for warp in warps:
        fragments = STAGES["queries"].function(warp, config, simulated.BASE + config.stage_bytes)
        found = unfolded(STAGES["scores"].function(warp, config, fragments, simulated.BASE), 64)
        right = right_q[16 * warp.warp : 16 * warp.warp + 16] @ right_k.T
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-4)


def test_weighted_sums_are_the_product_of_p_and_v(config):
    """P goes from sums to operands without moving, V is transposed by ldmatrix; earlier sums stay."""
    (v, right_v), warps = half_numbers(64, config), None
    warps = warps_of(config, v)
    copied(warps, config, "copy_keys", simulated.BASE, v, 64)
    weights = np.random.default_rng(0).random((16, 64), np.float32)
    weights = torch.from_numpy(weights).to(v.dtype).float().numpy()
    row, column = simulated.LANES // 4, 2 * (simulated.LANES % 4)
    p = [weights[row + 8 * (at % 4 // 2), 8 * (at // 4) + column + at % 2] for at in range(32)]
    acc = [warps[0].real(float(at)) for at in range(config.head_dim // 2)]
    packed = STAGES["packed"].function(warps[0], config, p)
    found = unfolded(STAGES["weighted"].function(warps[0], config, acc, packed, simulated.BASE), config.head_dim)
    right = unfolded(acc, config.head_dim) + weights.astype(np.float64) @ right_v
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rows", [0, 1, 9, 63, 64])
def test_rows_behind_the_last_one_are_zeros(config, rows):
    """They are never read either: the machine would say so."""
    (tensor, right), shared = half_numbers(rows, config), simulated.BASE
    warps = warps_of(config, tensor)
    copied(warps, config, "copy_keys", shared, tensor, rows)
    tile = warps[0].block.shared[shared : shared + config.tile_bytes].reshape(64, config.chunks, 16)
    order = np.arange(config.chunks)[None] ^ (np.arange(64)[:, None] & 7)
    found = tile[np.arange(64)[:, None], order].reshape(64, -1).copy().view(np.uint16)
    expected = np.zeros((64, config.head_dim))
    expected[:rows] = right
    np.testing.assert_array_equal(simulated.Half(config.half).real(found), expected)


def test_no_two_threads_meet_in_a_bank(config):
    """Eight threads at once read or write 16 bytes in eight different groups of banks, 32 threads four bytes likewise."""
    (q, _), (k, _) = half_numbers(config.rows, config), half_numbers(64, config)
    out = torch.empty_like(q)
    warps = warps_of(config, q, k, out)
    warp, pitch = warps[1], 2 * config.head_dim
    copied(warps, config, "copy_queries", simulated.BASE + config.stage_bytes, q, config.rows)
    copied(warps, config, "copy_keys", simulated.BASE, k, 64)
    fragments = STAGES["queries"].function(warp, config, simulated.BASE + config.stage_bytes)
    scores = STAGES["scores"].function(warp, config, fragments, simulated.BASE)
    acc = STAGES["no_output"].function(warp, config)
    STAGES["weighted"].function(warp, config, acc, STAGES["packed"].function(warp, config, scores), simulated.BASE)
    STAGES["write_rows"].function(warp, config, simulated.BASE, fragments, out.data_ptr(), pitch, 16)
    assert len(warp.eights) > 100
    assert all(len(set((eight // 16 % 8).tolist())) == 8 for eight in warp.eights)
    assert len(warp.words) == config.head_dim // 4
    assert all(len(set((word // 4 % 32).tolist())) == 32 for word in warp.words)


# --- from a call to a launch ------------------------------------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch):
    pytest.importorskip("numba_cuda")
    from attn_backends.backends.numba_mma import launch

    monkeypatch.setattr(launch, "loaded", lambda config, device: 77)
    return FakeDriver(monkeypatch)


def test_a_launch_has_what_the_kernel_reads(driver):
    """Every parameter at its place, the grid, the shared memory and torch's stream."""
    from attn_backends.backends.numba_mma.adapter import run

    call = table.call_of("packed", 128, torch.bfloat16, "cpu")
    grid, numbers = operands_of(call, call.out, CONFIGS[3].rows)
    assert grid == (2, 2, 5)
    run(call)
    found = driver.read("q" * 29 + "ff")
    assert found[:29] == list(numbers[:29])
    assert struct.pack("2f", *found[29:]) == struct.pack("2f", *numbers[29:])
    assert driver.shape == [*grid, 128, 1, 1, 65536]
    assert (driver.kernel, driver.stream) == (77, STREAM)


def test_an_output_that_lies_otherwise_is_copied_into(driver):
    """Strided rows that the kernel can write are written where they are; others, and other dtypes, by a copy."""
    from attn_backends.backends.numba_mma import adapter

    call = table.call_of("plain", 64, torch.float16, "cpu")
    plain = call.out
    room = torch.empty(*plain.shape[:-1], 72, dtype=torch.float16)
    for out, written_there in (
        (plain, True), (room[..., :64], True), (room[..., 1:65], False), (plain.float(), False),
        (torch.empty(*plain.shape[:-1], 65, dtype=torch.float16)[..., :64], False),
    ):  # fmt: skip
        call.out = out
        adapter.run(call)
        assert (driver.read("q" * 7)[3] == out.data_ptr()) is written_there


def test_more_than_a_grid_holds_is_refused():
    """With what it holds; one layer is for rows of no sequence. Positions count in 32 bits."""
    sizes = {"dtype": "float16", "seq_q": 8, "seq_k": 8, "head_dim_qk": 64, "head_dim_v": 64, "num_kv_heads": 1}
    device = Device.pretend("h200")
    assert check(Request(**sizes, batch=MOST - 1, num_q_heads=MOST), device) == []
    (reason,) = check(Request(**sizes, batch=MOST, num_q_heads=1), device)
    assert (reason.code, reason.axis, reason.got, reason.want) == ("check", "batch", MOST, f"<= {MOST - 1}")
    (reason,) = check(Request(**sizes | {"seq_k": FAR + 1}, batch=1, num_q_heads=1), device)
    assert (reason.axis, reason.got) == ("seq_k", FAR + 1)


# --- on a GPU ---------------------------------------------------------------------------------------------------------

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize(("head_dim", "half"), KINDS)
@pytest.mark.parametrize("name", table.CASES)
def test_on_a_gpu(name, head_dim, half):
    from attn_backends.backends.numba_mma.adapter import run

    call = table.call_of(name, head_dim, getattr(torch, half), "cuda")
    inputs = [tensor.clone() for tensor in (call.q, call.k, call.v)]
    run(call)
    assert_right(call, half)
    for tensor, before in zip((call.q, call.k, call.v), inputs, strict=True):
        assert torch.equal(tensor.view(torch.int16), before.view(torch.int16)), "an input was written"


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("changes", [{}, {"warps": 8}, {"lazy": True}], ids=str)
@pytest.mark.parametrize(("head_dim", "half"), KINDS)
@pytest.mark.parametrize("causal", [False, True])
def test_long_sequences_on_a_gpu(head_dim, half, causal, changes):
    """Many tiles, many blocks, and the same bits every time."""
    from attn_backends.backends.numba_mma.adapter import run

    table.CASES["long"] = (2, 1531, 2049, 8, 2, {"causal": causal})
    try:
        call = table.call_of("long", head_dim, getattr(torch, half), "cuda")
    finally:
        del table.CASES["long"]
    config = Config(head_dim=head_dim, half=half, **changes)
    run(call, config)
    assert_right(call, half)
    first = call.out.clone(), call.lse.clone()
    for _ in range(5):
        call.out.fill_(torch.nan)
        run(call, config)
        assert torch.equal(call.out, first[0])
        assert torch.equal(call.lse, first[1])


@pytest.mark.gpu
@on_a_gpu
def test_on_another_stream_and_in_another_thread_on_a_gpu():
    """The kernel is on torch's current stream, behind what fills its inputs there; a fresh thread finds its context."""
    from attn_backends.backends.numba_mma.adapter import run

    call = table.call_of("causal", 64, torch.float16, "cuda")
    wanted, q = call.out, call.q.clone()
    run(call)
    wanted = call.out.clone()
    call.out.fill_(torch.nan)
    call.q.zero_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())

    def work():
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            call.q.copy_(q)
            run(call)

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    stream.synchronize()
    assert torch.equal(call.out, wanted)
