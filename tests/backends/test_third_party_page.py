"""docs/third-party-fa4.md: what stands there as code is code."""

from __future__ import annotations

import re
import sys
import tomllib
import types
from pathlib import Path

import pytest
import torch

from attn_backends import Request, select
from attn_backends.call import Call
from attn_backends.device import Device
from attn_backends.registry.manifest import read_manifest
from attn_backends.registry.registry import Registry

PAGE = (Path(__file__).parents[2] / "docs" / "third-party-fa4.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
MANIFESTS = [tomllib.loads(text) for language, text in BLOCKS if language == "toml" and "[[capability]]" in text]
ADAPTER = next(text for language, text in BLOCKS if language == "python" and "def run" in text)


@pytest.mark.parametrize("raw", MANIFESTS, ids=lambda raw: raw["name"])
def test_the_manifests_are_manifests(raw):
    """Nothing in them is unknown, and each serves the call it is made for."""
    assert read_manifest(raw, label="page", origin="third_party").name == raw["name"]
    made = Registry(builtin=False, autoload=False)
    made.register({**raw, "requires": []}, print)
    asked = Request(
        dtype="float16", seq_q=17, seq_k=33, num_q_heads=4, num_kv_heads=2, head_dim_qk=64, head_dim_v=64, causal=True,
        alignment=16,
    )  # fmt: skip
    assert select(asked, device=Device.pretend("h200"), registry=made).backend == raw["name"]
    assert select(asked.replace(window_left=3), device=Device.pretend("h200"), registry=made).backend is None


def test_the_entry_point_names_the_manifest():
    """The name of the entry point is the name in the manifest, or the plugin would be an error."""
    project = next(tomllib.loads(text) for language, text in BLOCKS if "entry-points" in text)["project"]
    assert project["entry-points"]["attn_backends.backends"] == {"fa4": "attn_backends_fa4:backend.toml"}


@pytest.mark.parametrize("wants_lse", [False, True])
def test_the_adapter_writes_what_the_package_returns(monkeypatch, wants_lse):
    """Arguments by their names in flash_attn.cute, out and LSE into the host's memory."""
    passed = {}

    def flash_attn_func(q, k, v, *, softmax_scale, causal, return_lse):
        passed.update(softmax_scale=softmax_scale, causal=causal, return_lse=return_lse)
        return q * 2, torch.ones(1, 4, 3) if return_lse else None

    package, cute = types.ModuleType("flash_attn"), types.ModuleType("flash_attn.cute")
    cute.flash_attn_func = flash_attn_func
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)
    adapter = {}
    exec(compile(ADAPTER, "adapter.py", "exec"), adapter)
    q = torch.randn(1, 3, 4, 8)
    lse = torch.zeros(1, 4, 3) if wants_lse else None
    call = Call(q=q, k=q, v=q, out=torch.empty_like(q), lse=lse, causal=True, softmax_scale=0.5)
    adapter["run"](call)
    assert torch.equal(call.out, q * 2)
    assert lse is None or bool((lse == 1).all())
    assert passed == {"softmax_scale": 0.5, "causal": True, "return_lse": wants_lse}
