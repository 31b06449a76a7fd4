"""numba_driver: PTX kept on disk, launches that the driver can read, one plan per kind of call. Without a GPU."""

from __future__ import annotations

import threading

import pytest
import torch

pytest.importorskip("numba_cuda")

from attn_backends.call import Call
from attn_backends.numba_driver import launch as launching
from attn_backends.numba_driver import plan as planning
from attn_backends.numba_driver import ptx
from attn_backends.numba_driver.launch import Launch, architecture
from attn_backends.numba_driver.plan import Calls, Plan
from tests.numba_driver.fake_driver import STREAM, FakeDriver


@pytest.fixture
def driver(monkeypatch):
    return FakeDriver(monkeypatch)


# --- PTX --------------------------------------------------------------------------------------------------------------


def test_ptx_is_kept_on_disk(monkeypatch, tmp_path):
    """Made once per machine; a torn file is made again, and a folder that cannot be written costs time alone."""
    made = []

    def ask(*what):
        return ptx.kept(
            "attn_backends.numba_driver", what, lambda: made.append(what) or ".entry name(\n)\n{\nret;\n}\n"
        )

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    texts = {ask(9, 0) for _ in range(3)}
    assert (len(texts), made) == (1, [(9, 0)])
    assert ptx.entry_of(texts.pop()) == "name"
    (kept,) = (tmp_path / "numba_driver").iterdir()
    kept.write_text(".entry name(", encoding="utf-8")
    ask(9, 0)
    kept.write_bytes(b"\xff.entry name(}")
    ask(9, 0)
    ask(8, 0)
    assert made == [(9, 0), (9, 0), (9, 0), (8, 0)]
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(file))
    ask(9, 0)
    assert made[4:] == [(9, 0)]


@pytest.mark.parametrize(
    ("capability", "target"),
    [((7, 5), (7, 5)), ((8, 0), (8, 0)), ((8, 9), (8, 0)), ((9, 0), (9, 0)), ((10, 3), (10, 0)), ((12, 1), (12, 0))],
)
def test_a_device_gets_the_newest_code_it_runs(monkeypatch, capability, target):
    monkeypatch.setattr(launching.torch.cuda, "get_device_capability", lambda device: capability)
    assert architecture(0) == target


# --- a launch ---------------------------------------------------------------------------------------------------------


def test_the_driver_finds_every_parameter(driver):
    """In the kernel's order, whatever lies where: addresses of each call, all else as it was."""
    launch = Launch(77, (2, 3, 4), (8, 16), 1000, 0, "qPf?Pq", (-1, 0.5, True, 1 << 40))
    for addresses in ((1 << 40, 2), (3, 0)):
        launch(*addresses)
        assert driver.read("qqf?qq") == [-1, addresses[0], 0.5, True, addresses[1], 1 << 40]
        assert (driver.shape, driver.kernel, driver.stream) == ([2, 3, 4, 8, 16, 1, 1000], 77, STREAM)


def test_what_the_driver_says_is_raised(driver):
    driver.code = 700
    with pytest.raises(RuntimeError, match="700, an illegal memory access"):
        Launch(77, (1, 1, 1), (1, 1), 0, 0, "P", ())(0)


# --- plans ------------------------------------------------------------------------------------------------------------


def a_call(**changes):
    q, k, v = torch.zeros(1, 4, 2, 8), torch.zeros(1, 5, 2, 8), torch.zeros(1, 5, 2, 8)
    return Call(**{"q": q, "k": k, "v": v, "out": torch.zeros(1, 4, 2, 8), "lse": torch.zeros(1, 2, 4), **changes})


@pytest.fixture
def calls(driver):
    """Calls that note what was prepared and which addresses were launched."""
    prepared, launched = [], []

    def prepare(call, option):
        prepared.append(option)
        return Plan(device=-1, launch=lambda *addresses: launched.append(addresses))

    made = Calls(prepare)
    return made, prepared, launched


def test_calls_that_differ_in_addresses_alone_share_a_plan(calls):
    """And each is launched with its own: q, k, v, out, lse and both starts, 0 for what is not there."""
    made, prepared, launched = calls
    for call in (a_call(), a_call(lse=None), a_call()):
        made.run(call)
        tensors = (call.q, call.k, call.v, call.out, call.lse, None, None)
        assert launched[-1] == tuple(0 if tensor is None else tensor.data_ptr() for tensor in tensors)
    assert len(prepared) == 2


STARTS = torch.zeros(3, dtype=torch.int32)
DIFFERENT = {
    "dtype": {"q": torch.zeros(1, 4, 2, 8).half()},
    "length": {"k": torch.zeros(1, 6, 2, 8), "v": torch.zeros(1, 6, 2, 8)},
    "strides of k": {"k": torch.zeros(1, 5, 2, 16)[..., :8]},
    "strides of the output": {"out": torch.zeros(1, 4, 2, 16)[..., :8]},
    "alignment of the output": {"out": torch.zeros(1 + 64)[1:].view(1, 4, 2, 8)},
    "strides of the LSE": {"lse": torch.zeros(1, 4, 2).transpose(1, 2)},
    "mask": {"causal": True},
    "diagonal": {"causal_alignment": "top_left"},
    "window": {"window_left": 3},
    "window to the right": {"window_right": 3},
    "scale": {"softmax_scale": 2.0},
    "softcap": {"softcap": 2.0},
    "layout": {"layout": "bhsd"},
    "packed": {"cu_seqlens_q": STARTS, "cu_seqlens_k": STARTS},
    "longest": {"max_seqlen_q": 7},
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_calls_that_differ_otherwise_do_not(calls, name):
    made, prepared, _ = calls
    made.run(a_call())
    made.run(a_call(**DIFFERENT[name]))
    assert len(prepared) == 2


def test_the_steps_between_starts_count(calls):
    """Kernels that are told strides are told those of the starts too."""
    made, prepared, _ = calls
    wide = torch.zeros(3, 2, dtype=torch.int32)[:, 0]
    for starts in (STARTS, wide, STARTS):
        made.run(a_call(cu_seqlens_q=starts, cu_seqlens_k=STARTS))
    assert len(prepared) == 2


def test_a_thread_has_its_own_plans(calls):
    """For they hold the memory of a launch."""
    made, prepared, _ = calls
    made.run(a_call())
    worker = threading.Thread(target=made.run, args=(a_call(),))
    worker.start()
    worker.join()
    assert len(prepared) == 2


def test_old_plans_go(calls, monkeypatch):
    made, prepared, _ = calls
    monkeypatch.setattr(planning, "MOST", 2)
    for scale in (1.0, 2.0, 3.0, 3.0, 2.0, 1.0):
        made.run(a_call(softmax_scale=scale))
    assert len(prepared) == 4


def test_an_output_of_another_kind_is_copied_into(calls):
    """What the kernel writes has the plan's dtype, and rows that it does not write are cleared first."""
    made, _, launched = calls
    call = a_call(out=torch.full((1, 4, 2, 8), float("nan"), dtype=torch.bfloat16))
    made._prepare = lambda call, option: Plan(
        device=-1, launch=lambda *addresses: launched.append(addresses), between=torch.float32, clear=True
    )
    made.run(call)
    assert launched[-1][3] != call.out.data_ptr()
    assert torch.equal(call.out, torch.zeros_like(call.out))
    assert bool(torch.isneginf(call.lse).all())
