"""Peers on a machine without them: stand-ins on the path, adapters loaded anew, the suite's items on the CPU.

A stand-in computes what the real package computes, and refuses or spoils what the real one cannot do; whether the
manifests are true of the real packages is for the conformance suite on the device to say.
"""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from attn_backends.call import Call
from attn_backends.conformance.backend_in_use import items_of, registered
from attn_backends.conformance.checks import context_of
from attn_backends.conformance.engine import run_with
from attn_backends.conformance.outcome import Outcome

HERE = Path(__file__).parent
MANIFESTS = Path(importlib.import_module("attn_backends.box").__file__).parent / "backends"
PEERS = ("fa3_fwd_interface", "flash_attn_interface", "flashinfer")
ADAPTERS = ("fa3", "fa3_fp8", "flashinfer", "torch_varlen", "packed_flash")


def _is_ours(name: str) -> bool:
    packages = (*PEERS, *(f"attn_backends.backends.{adapter}" for adapter in ADAPTERS))
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@contextmanager
def installed(folder: Path | None = HERE / "fake_peers") -> Iterator[None]:
    """The peers of a folder as if installed (None: no peer at all), and no adapter loaded before; all undone after."""
    held = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_ours(name)}
    path = list(sys.path)
    sys.path[:] = path if folder is None else [str(folder), *path]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        for name in [name for name in sys.modules if _is_ours(name)]:
            del sys.modules[name]
        sys.modules.update(held)


def on_cpu(name: str) -> dict:
    """A built-in manifest under another name, declared for the CPU and with nothing required."""
    raw = tomllib.loads((MANIFESTS / name / "backend.toml").read_text(encoding="utf-8"))
    raw |= {"name": f"{name}_stand_in", "requires": []}
    for box in raw["capability"]:
        box["device"] = ["cpu"]
        del box["arch"]
    return raw


def suite_complaints(name: str, *, every: int = 1) -> list[str]:
    """What the conformance suite at `quick` has to say against a peer's adapter, on its stand-in."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the suite's own workers do: many tests may run at once
    try:
        with registered(on_cpu(name), None) as backend:
            context = context_of(backend, "cpu")
            items = items_of(backend)[::every]
            assert items
            results = [run_with(context, item) for item in items]
    finally:
        torch.set_num_threads(threads)
    fine = (Outcome.PASS, Outcome.REFUSED)
    return [f"{one.outcome.name} {one.id}: {one.message}" for one in results if one.outcome not in fine]


def packed_call(q_lens, k_lens, *, dtype, heads=(4, 2), width=64, width_v=None, tail=0, **changes) -> Call:
    """A packed call on random rows, `tail` NaN rows of K and V behind the last sequence; out and LSE hold NaN."""
    torch.manual_seed(0)
    width_v = width_v or width
    total_q, total_k = sum(q_lens), sum(k_lens)
    q = torch.randn(total_q, heads[0], width).to(dtype)
    k, v = (torch.randn(total_k + tail, heads[1], size).to(dtype) for size in (width, width_v))
    k[total_k:], v[total_k:] = torch.nan, torch.nan
    fields = {
        "q": q, "k": k, "v": v, "out": q.new_full((total_q, heads[0], width_v), torch.nan), "layout": "thd",
        "lse": torch.full((heads[0], total_q), torch.nan), "cu_seqlens_q": ends(q_lens), "cu_seqlens_k": ends(k_lens),
        "max_seqlen_q": max(q_lens), "max_seqlen_k": max(k_lens), "softmax_scale": width**-0.5,
    }  # fmt: skip
    return Call(**{**fields, **changes})


def ends(lengths) -> torch.Tensor:
    """Cumulative sums, int32 [B + 1]."""
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def reference(call: Call) -> Call:
    """The same call, answered by the reference backend in memory of its own."""
    given = {**call.__dict__, "out": torch.empty_like(call.out)}
    if call.lse is not None:
        given["lse"] = torch.empty_like(call.lse)
    answered = Call(**given)
    importlib.import_module("attn_backends.backends.eager.adapter").run(answered)
    return answered


def assert_answers(call: Call, *, rtol: float = 2e-2, atol: float = 2e-3) -> None:
    """out and LSE of a call that ran are those of the reference."""
    wanted = reference(call)
    torch.testing.assert_close(call.out, wanted.out, rtol=rtol, atol=atol)
    if call.lse is not None:
        torch.testing.assert_close(call.lse, wanted.lse, rtol=1e-3, atol=1e-3)
