"""`append_kv`'s kernel stores what torch stores, bit for bit: interpreted on any machine, and through the API on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from attn_backends.host import append_kv as host  # noqa: E402
from tests.host import fused_write_cases as table  # noqa: E402

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="session")
def interpreted():
    """What the interpreter found, in a process of its own: the choice is made when a kernel is defined."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.host.fused_write_cases"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", table.CASES)
def test_interpreted(interpreted, name):
    assert not any(interpreted[name].values()), interpreted[name]


class Divisors(TorchDispatchMode):
    """What is divided by inside."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.name().startswith("aten::div"):
            self.found.append(args[1])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("stored", table.FORMATS.values(), ids=str)
def test_torch_divides_on_the_device(stored):
    """By a number of the host it would multiply by a reciprocal on CUDA, and differ from the kernel in the last bit."""
    rows = torch.ones(2, 3, 16, device="meta")
    with Divisors() as divisors:
        scales = host._token_scales(rows, stored)
        host._quantise(rows, scales.unsqueeze(-1), stored)
    assert [torch.is_tensor(by) and by.device.type for by in divisors.found] == ["meta", "meta"]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", table.CASES | table.BFLOAT16)
def test_on_a_gpu(name):
    found = table.differences((table.CASES | table.BFLOAT16)[name], "cuda")
    assert not any(found.values()), found


@pytest.mark.gpu
@needs_gpu
def test_the_public_call_uses_it_and_skips_slots_outside_the_cache(monkeypatch):
    """One launch for K and V; a slot behind the last page writes nothing."""
    from attn_backends import append_kv
    from attn_backends.host import fused_write

    written = []
    monkeypatch.setattr(fused_write, "write", lambda *given, real=fused_write.write: (written.append(1), real(*given)))
    k = torch.randn(3, 2, 16, device="cuda", dtype=torch.bfloat16)
    caches = [torch.zeros(2, 4, 2, 16, device="cuda", dtype=torch.bfloat16) for _ in "kv"]
    append_kv(k, k, *caches, torch.tensor([1, 8, -1], device="cuda"))
    assert written == [1]
    for cache in caches:
        assert torch.equal(cache[0, 1], k[0])
        assert int(cache.count_nonzero()) == int(k[0].count_nonzero())
