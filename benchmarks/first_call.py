"""Seconds of a first call: in a process that compiles, and in a later one that finds the kernels on disk; on one GPU.

    python benchmarks/first_call.py [--backend triton_tiled] [--out benchmarks/results/h200/first_call.json]

Each figure is the time of the first `attention(...)` of a process (and of the first backward after it), device work
included; torch is imported, CUDA is started and one backward of torch's own is done before the clock, with the
gradient handed in, because torch imports sympy where one is (1 to 2 s, once a process). Every case has a cache folder
of its own, empty at first; a case's processes follow each other, and so many cases run side by side that each has as
many cores as a backward has kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "window, softcap": {"causal": True, "window_left": 1023, "softcap": 30.0},
}
WIDTHS = (64, 128, 256)
LATER = 2  # processes after the first
KERNELS = 4  # of a backward


def first_call(backend: str, head_dim: int, case: str) -> dict[str, float]:
    """Seconds of this process's first call and first backward."""
    import torch

    import attn_backends

    shape = (2, 2048, 2048 // head_dim, head_dim)
    tensors = [torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
    torch.autograd.grad(tensors[0].square(), tensors[0], torch.ones_like(tensors[0]))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    out = attn_backends.attention(*tensors, **CASES[case], backend=backend)
    torch.cuda.synchronize()
    between = time.perf_counter()
    torch.autograd.grad(out, tensors, torch.randn_like(out))
    torch.cuda.synchronize()
    return {"forward": between - begin, "backward": time.perf_counter() - between}


def measure(backend: str, head_dim: int, case: str) -> dict[str, Any]:
    """The first process's seconds, and those of later ones, over one cache folder."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, __file__, "--backend", backend, "--child", str(head_dim), case]
        environment = {**os.environ, "TRITON_CACHE_DIR": cache}
        runs = [
            json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
            for _ in range(1 + LATER)
        ]
    return {"head_dim": head_dim, "case": case, "first": runs[0], "later": runs[1:]}


def record(backend: str) -> dict[str, Any]:
    """Every case, with what it was measured on."""
    import torch

    from attn_backends.bench.versions import device_name, versions
    from attn_backends.registry.registry import default_registry

    return {
        "schema": "attn.first_call/1", "command": f"python benchmarks/first_call.py --backend {backend}", "backend": backend,
        "device": device_name(torch.device("cuda")), "versions": versions(default_registry().snapshot()),
        "cpus": os.cpu_count(), "rows": _side_by_side(backend),
    }  # fmt: skip


def _side_by_side(backend: str) -> list[dict[str, Any]]:
    cases = list(product(WIDTHS, CASES))
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // KERNELS)) as pool:
        return list(pool.map(lambda case: measure(backend, *case), cases))


def main() -> None:
    """Measure and write; with --child, be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="triton_tiled")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200/first_call.json"))
    parser.add_argument("--child", nargs=2, metavar=("HEAD_DIM", "CASE"))
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(first_call(asked.backend, int(asked.child[0]), asked.child[1])))
        return
    found = record(asked.backend)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for row in found["rows"]:
        print(f"{row['head_dim']:4} {row['case']:16} " + "; ".join(_line(row, way) for way in ("forward", "backward")))


def _line(row: dict[str, Any], way: str) -> str:
    later = max(run[way] for run in row["later"])
    return f"{way} {row['first'][way]:.2f} s, later {later:.2f} s"


if __name__ == "__main__":
    main()
