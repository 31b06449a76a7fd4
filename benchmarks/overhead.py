"""What the machinery costs beside torch's own call, on one core, eager mode, no hooks: `python benchmarks/overhead.py`.

Prints microseconds and ratios against `torch.nn.functional.scaled_dot_product_attention` on a (1, 1, 1, 8) tensor,
measured in the same run, interleaved; `--json FILE` writes them. Never a timed test: figures depend on the machine.
`attn-backends bench --suite overhead` measures the same and every backend besides.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from pathlib import Path

import torch

from attn_backends.bench import machinery
from attn_backends.bench.host_time import CALLS, ROUNDS


def main() -> None:
    """Measure, print, and write what `--json` names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {name: statistics.median(times) for name, times in machinery.cached_paths().items()}
    found["uncached_15_backends"] = statistics.median(machinery.uncached())
    found["uncached_15_backends_read"] = statistics.median(machinery.uncached(read=True))
    found["import_ms"] = statistics.median(machinery.fresh_import())
    found["list_ms"] = statistics.median(machinery.fresh_list())
    sdpa = found["sdpa"]
    decision = found["attention_around_nothing"] - found["bound_fast"]
    rows = [
        ("torch SDPA on (1, 1, 1, 8)", sdpa, ""),
        ("select, cached", found["select_cached"], "<= 0.5x"),
        ("attention() around a kernel that does nothing", found["attention_around_nothing"], "<= 1.3x"),
        ("  of which allocating the output", found["allocate_output"], ""),
        ("  of which the decision (the rest of it)", decision, "<= 1.5 us"),
        ("  of which the ledger", found["ledger_step"], "< 0.3 us"),
        ("attention() over sdpa_math", found["attention_sdpa_math"], ""),
        ("decision.load() over sdpa_math", found["loaded_sdpa_math"], ""),
        ("select, uncached, 15 backends", found["uncached_15_backends"], "<= 100 us"),
        ("  and every reason read", found["uncached_15_backends_read"], "<= 100 us"),
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
