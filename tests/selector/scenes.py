"""Small registries and requests for the selector's tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from attn_backends import Decision, Policy, Registry, Request, select
from attn_backends.capability import REQUIRED, TABLE
from attn_backends.registry.manifest import read_manifest

ROOT = Path(__file__).parents[2]
BOX: dict[str, Any] = {row.axis: "any" for row in TABLE if row.neutral is REQUIRED and row.axis != "alignment"}
PLAIN: dict[str, Any] = {
    "dtype": "bfloat16", "seq_q": 512, "seq_k": 512, "num_q_heads": 8, "num_kv_heads": 8, "head_dim_qk": 128,
    "head_dim_v": 128, "causal": True,
}  # fmt: skip


def request(**changes: Any) -> Request:
    """A plain prefill, with changes."""
    return Request(**{**PLAIN, **changes})


def backend(name: str, *, box: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """A manifest that serves every plain request; `box` adds axes."""
    return {"name": name, "capability": [{**BOX, **(box or {})}], **keys}


def registry(*manifests: dict[str, Any]) -> Registry:
    """Only these backends; two names of priority 1 and 2 where none are given."""
    made = Registry(builtin=False, autoload=False)
    for manifest in manifests or (backend("a", priority=1), backend("b", priority=2)):
        made.register(manifest, lambda call: None)
    return made


def third_party(name: str, **keys: Any) -> Any:
    """A manifest as if another distribution had announced it."""
    raw = {"schema": 1, "version": "1.0", "api": ">=1.0,<2", "kernel": "nowhere:run", **backend(name, **keys)}
    return read_manifest(raw, label=f"{name}/backend.toml", origin="third_party")


def decide(made: Registry, policy: dict[str, Any] | None = None, device: str = "h200", **arguments: Any) -> Decision:
    """Ask for a plain request; `policy` as a dict."""
    asked = arguments.pop("request", None) or request()
    given = None if policy is None else Policy.from_dict(policy)
    return select(asked, policy=given, registry=made, device=device, **arguments)


def codes(decision: Decision, name: str) -> set[str]:
    """Why a backend is out; empty if it is in."""
    return {reason.code for reason in decision.candidate(name).reasons} - {"outranked"}


def run_python(script: str, *, extra_path: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter at the repository's root; knobs only as given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ATTN_BACKENDS_")}
    path = os.pathsep.join(str(entry) for entry in (extra_path, ROOT) if entry is not None)
    return subprocess.run(
        [sys.executable, "-W", "default", "-c", script], capture_output=True, text=True, timeout=120, check=False,
        cwd=ROOT, env={**kept, "PYTHONPATH": path, **environment},
    )  # fmt: skip
