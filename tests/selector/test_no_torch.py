"""Everything above the call works in an interpreter that cannot import torch, triton or numba."""

from __future__ import annotations

import pytest

from tests.selector.scenes import run_python

BLOCKED = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "triton", "numba"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Refuse())
import attn_backends
from attn_backends import Decision, cache_info, register, unregister
from attn_backends import Device, Environment, Policy, Request, explain, list_backends, select, use
request = Request(dtype="bfloat16", seq_q=512, seq_k=512, num_q_heads=8, num_kv_heads=8, head_dim_qk=128, head_dim_v=128)
"""
WORK = {
    "select": 'assert select(request, device=Device.pretend("h200")).backend',
    "explain": 'assert "sdpa_flash" in explain(request, device="a100")',
    "list": 'assert {m.name for m in list_backends()} >= {"eager", "sdpa_math", "flex"}',
    "force": 'assert select(request, device="h200", backend="eager").source == "explicit"',
    "scope": 'with use("eager", phase="prefill"): assert select(request, device="h200").source == "scope"',
    "json": 'import json\nd = select(request, device="h200")\nassert Decision.from_json(json.dumps(d.to_json())).replay().same',
    "policy": 'assert select(request, device="h200", policy=Policy(prefer=["flex"])).backend == "flex"',
    "versions": 'd = select(request, device="h200", environment=Environment.pretend(torch="2.4"))\nassert d.backend == "eager"',
    "register": 'register({"name": "mine", "capability": [{"dtype": "any"}]}, print)\nunregister("mine")',
    "this machine": "select(request)",
    "cache": "select(request, device='h200')\nassert cache_info().resolutions >= 1",
    "plan": "from attn_backends import planning",
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK.keys())
def test_without_torch(work):
    """It works, and nothing was imported on the way."""
    end = "\nassert not {'torch', 'triton', 'numba'} & set(sys.modules)\nprint('done')"
    done = run_python(f"{BLOCKED}\n{work}{end}")
    assert done.stdout.strip().endswith("done"), done.stderr
