"""What the machinery costs beside torch's own call, on one core, eager mode, no hooks: `python benchmarks/overhead.py`.

Prints microseconds and ratios against `torch.nn.functional.scaled_dot_product_attention` on a (1, 1, 1, 8) tensor,
measured in the same run, interleaved; `--json FILE` writes them. Never a timed test: figures depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import attn_backends as ab
from attn_backends.host import dispatch
from attn_backends.host.arguments import Arguments
from attn_backends.registry.knobs import raw_knobs
from attn_backends.registry.registry import Registry
from attn_backends.selector.resolve import resolve
from attn_backends.selector.select import question_of
from attn_backends.selector.times import NO_TIMES

ROUNDS, CALLS = 15, 4000
EVERYTHING = {
    "device": ["cpu"], "arch": "any", "dtype": "any", "kv_format": ["dense"], "layout": "any", "phase": "any",
    "attn_type": "any", "head_dim": "any", "head_dim_v": "any", "gqa_ratio": "any", "seq_len": "any",
    "causal": "any", "strides": "any", "index_width": [32, 64],
}  # fmt: skip
LIMITS = {
    "list_ms": 150.0,
    "import_ms": 30.0,
    "decision_us": 1.5,
    "attention_minus_backend_us": 4.0,
    "uncached_us": 100.0,
}


def measure(named: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median microseconds per call of each, in interleaved rounds."""
    samples: dict[str, list[float]] = {name: [] for name in named}
    for _ in range(ROUNDS):
        for name, function in named.items():
            started = time.perf_counter()
            for _ in range(CALLS):
                function()
            samples[name].append((time.perf_counter() - started) / CALLS * 1e6)
    return {name: statistics.median(found) for name, found in samples.items()}


def hot_paths() -> dict[str, float]:
    """The cached paths: torch's call, `select`, the decision inside `attention()`, and `attention()` itself."""
    q = torch.randn(1, 1, 1, 8)
    ab.register({"name": "does_nothing", "priority": 10_000, "capability": [EVERYTHING]}, lambda _call: None)
    with torch.no_grad():
        ab.attention(q, q, q)
        request = ab.Request.from_tensors(q, q, q)
        bound = dispatch.find_bound(q, q, q, Arguments())
        ab.select(request)
        ab.attention(q, q, q, backend="sdpa_math")
        kernel = ab.select(request, backend="sdpa_math").load()
        kernel(q, q, q)
        found = measure(
            {
                "sdpa": lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q),
                "select_cached": lambda: ab.select(request),
                "kernel_doing_nothing": lambda: bound.loaded.run(None),
                "attention_around_nothing": lambda: ab.attention(q, q, q),
                "bound_fast": lambda: bound.fast(q, q, q),
                "ledger_step": bound.account.launches.step,
                "attention_sdpa_math": lambda: ab.attention(q, q, q, backend="sdpa_math"),
                "loaded_sdpa_math": lambda: kernel(q, q, q),
                "allocate_output": lambda: torch.empty_like(q),
            }
        )
    ab.unregister("does_nothing")
    return found


def uncached(backends: int = 15) -> float:
    """Median microseconds of one resolution over `backends` backends, every reason collected."""
    registry = Registry()
    for index in range(backends - len(registry.snapshot().manifests)):
        box = {**EVERYTHING, "device": ["cuda"], "arch": ["9.0"], "head_dim": {"multiple_of": 8, "max": 64 + 8 * index}}
        registry.register({"name": f"extra_{index}", "capability": [box]}, print)
    assert len(registry.snapshot().manifests) == backends
    device = ab.Device.pretend("h200")
    shapes = [(d, s, w, cap) for d in (40, 64, 128, 256) for s in (77, 4096) for w in (-1, 127) for cap in (None, 30.0)]
    requests = [
        ab.Request(
            dtype="bfloat16", seq_q=s, seq_k=s, num_q_heads=32, num_kv_heads=8, head_dim_qk=d, head_dim_v=d, causal=True,
            window_left=w, softcap=cap,
        )
        for d, s, w, cap in shapes
    ]  # fmt: skip

    def once(request: ab.Request) -> float:
        started = time.perf_counter()
        question, _ = question_of(
            request, None, None, device, None, (), raw_knobs(), registry.snapshot(), registry, NO_TIMES
        )
        resolve(question)
        return (time.perf_counter() - started) * 1e6

    for request in requests:
        once(request)
    return statistics.median(once(request) for _ in range(20) for request in requests)


def in_a_fresh_process() -> dict[str, float]:
    """Milliseconds to import the package, and of `attn-backends list`, interpreter start included; medians of 7."""
    timer = "import time; t = time.perf_counter(); import attn_backends; print((time.perf_counter() - t) * 1e3)"
    imports = [float(subprocess.check_output([sys.executable, "-c", timer])) for _ in range(7)]
    lists = []
    for _ in range(7):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "attn_backends.cli.main", "list"], stdout=subprocess.DEVNULL, check=True)
        lists.append((time.perf_counter() - started) * 1e3)
    return {"import_ms": statistics.median(imports), "list_ms": statistics.median(lists)}


def main() -> None:
    """Measure, print, and write what `--json` names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {**hot_paths(), "uncached_15_backends": uncached(), **in_a_fresh_process()}
    sdpa = found["sdpa"]
    decision = found["attention_around_nothing"] - found["bound_fast"]
    rows = [
        ("torch SDPA on (1, 1, 1, 8)", sdpa, ""),
        ("select, cached", found["select_cached"], "<= 0.5x"),
        ("attention() around a kernel that does nothing", found["attention_around_nothing"], "<= 1.3x"),
        ("  of which allocating the output", found["allocate_output"], ""),
        ("  of which the decision (the rest of it)", decision, "<= 1.5 us (DESIGN 11)"),
        ("  of which the ledger", found["ledger_step"], "< 0.3 us"),
        ("attention() over sdpa_math", found["attention_sdpa_math"], ""),
        ("decision.load() over sdpa_math", found["loaded_sdpa_math"], ""),
        ("select, uncached, 15 backends", found["uncached_15_backends"], "<= 100 us"),
    ]
    print(f"torch {torch.__version__}, python {platform.python_version()}, one thread; medians of {ROUNDS} rounds")
    for name, us, limit in rows:
        print(f"{name:<48}{us:9.2f} us{us / sdpa:8.2f}x   {limit}")
    print(f"{'import attn_backends':<48}{found['import_ms']:9.1f} ms            <= 30 ms")
    print(f"{'attn-backends list, interpreter start included':<48}{found['list_ms']:9.1f} ms            <= 150 ms")
    if options.json:
        record = {
            "torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine(),
            "command": "python benchmarks/overhead.py", "rounds": ROUNDS, "calls": CALLS, **found,
            "ratios": {name: us / sdpa for name, us, _ in rows},
        }  # fmt: skip
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
