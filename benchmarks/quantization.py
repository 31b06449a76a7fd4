"""The accuracy of every way to quantise, against float64: plain numbers and numbers with outliers, several lengths.

    python benchmarks/quantization.py [--out benchmarks/results/cpu/quantization.json]

A model of kernels, as `attn_backends.quantization_error` says: no GPU is used. Each figure is the median over seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import torch

from attn_backends import __version__, quantization_error
from attn_backends.error_budget.samples import OUTLIERS, drawn

DATA = {"normal": 0.0, "outliers": OUTLIERS}
WIDTHS = (64, 128, 256)
LENGTHS = (1024, 4096, 16384)
SEEDS = 3
HEADS = 2
ROWS = 32


def measured(data: str, head_dim: int, seq: int, causal: bool) -> dict[str, Any]:
    """The relative error of every option: the median over seeds, and the smallest and largest."""
    found: dict[str, list[float]] = {}
    for seed in range(SEEDS):
        tensors = drawn(
            batch=1, seq=seq, heads=HEADS, kv_heads=HEADS, head_dim=head_dim, outliers=DATA[data], seed=seed
        )
        for one in quantization_error(*tensors, causal=causal, rows=ROWS, seed=seed).options:
            found.setdefault(one.name, []).append(one.relative)
    errors = {name: [min(them), statistics.median(them), max(them)] for name, them in found.items()}
    return {"data": data, "head_dim": head_dim, "seq": seq, "causal": causal, "errors": errors}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/cpu/quantization.json"))
    asked = parser.parse_args()
    rows = [measured(*place) for place in product(DATA, WIDTHS, LENGTHS, (False, True))]
    record = {
        "schema": "attn.quantization/1", "command": "python benchmarks/quantization.py", "torch": torch.__version__,
        "attn-backends": __version__, "heads": HEADS, "rows": ROWS, "seeds": SEEDS, "cells": rows,
    }  # fmt: skip
    asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        shown = "  ".join(f"{name} {middle:.3%}" for name, (_low, middle, _high) in row["errors"].items())
        print(row["data"], row["head_dim"], row["seq"], "causal" if row["causal"] else "full", shown)


if __name__ == "__main__":
    main()
