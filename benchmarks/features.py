"""What a feature costs: time per visible pair beside the same backend without the feature, on one GPU.

    python benchmarks/features.py [--backend triton_tiled] [--peer flex] [--head-dim 64 128] [--forward]
        [--out benchmarks/results/h200/features.json]

A window of 1,024 is compared with causal attention over 2,048 tokens and, more strictly, with full attention over 1,024:
both have as many pairs per row. Packed sequences are compared with the same sequences dense; GQA, softcap and sinks with
causal attention of as many query heads. Besides: a window of 1,024 at 65,536 tokens beside its own full causal, and a peer
in the same rounds. bfloat16, fresh random data, L2 cold, medians of interleaved rounds; every call is checked against
`eager` at 512 tokens first. What is timed is compiled by processes side by side.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import torch

import attn_backends
from attn_backends.bench.clock import CudaClock
from attn_backends.bench.versions import clocks, device_name, versions
from attn_backends.host.dispatch import device_of
from attn_backends.registry.registry import default_registry

ROUNDS = 15
TOKENS = 16384
WIDTH = 2048
WIDTHS = (64, 128, 256)
LIMIT = 0.03  # of the largest value
Extras = Callable[[int, int], dict[str, Any]]


def _sinks(heads: int, _seq: int) -> dict[str, Any]:
    return {"causal": True, "sinks": torch.randn(heads, device="cuda")}


FEATURES: dict[str, tuple[str, Extras]] = {
    # name: (what it is compared with, arguments)
    "full": ("full", lambda _h, _s: {}),
    "causal": ("causal", lambda _h, _s: {"causal": True}),
    "softcap": ("causal", lambda _h, _s: {"causal": True, "softcap": 30.0}),
    "sinks": ("causal", _sinks),
    "window": ("causal, twice the window", lambda _h, _s: {"causal": True, "window_left": 1023}),
    "packed": ("causal", lambda _h, _s: {"causal": True}),
    "gqa8": ("causal", lambda _h, _s: {"causal": True}),
}


def pairs(seq: int, causal: bool, left: int | None = None) -> int:
    """Visible (query, key) pairs of one head of one sequence."""
    if not causal:
        return seq * seq
    return sum(min(i, seq if left is None else left) + 1 for i in range(seq))


def inputs(name: str, head_dim: int, seq: int) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """q, k, v and the arguments of a feature: bshd, or packed."""
    heads, batch = max(1, WIDTH // head_dim), max(1, TOKENS // seq)
    kv_heads = heads // 8 if name == "gqa8" else heads
    arguments = FEATURES[name][1](heads, seq)
    shape: tuple[int, ...] = (batch, seq)
    if name == "packed":
        starts = torch.arange(0, batch * seq + 1, seq, device="cuda", dtype=torch.int32)
        arguments |= {"layout": "thd", "cu_seqlens_q": starts, "cu_seqlens_k": starts}
        arguments |= {"max_seqlen_q": seq, "max_seqlen_k": seq}
        shape = (batch * seq,)
    drawn = (torch.randn(*shape, n, head_dim, device="cuda", dtype=torch.bfloat16) for n in (heads, kv_heads, kv_heads))
    return tuple(drawn), arguments


def check(name: str, backend: str, head_dim: int) -> float:
    """Largest deviation from eager over the largest value. Raises ValueError where it is too large."""
    tensors, arguments = inputs(name, head_dim, 512)
    got = attn_backends.attention(*tensors, **arguments, backend=backend)
    right = attn_backends.attention(*tensors, **arguments, backend="eager")
    error = float((got.float() - right.float()).abs().max() / right.float().abs().max())
    if not error <= LIMIT:
        raise ValueError(f"{backend} is wrong on {name}, head_dim {head_dim}: {error}")
    return error


def timed(calls: dict[str, Callable[[], Any]], clock: CudaClock) -> dict[str, list[float]]:
    """Milliseconds of every call, rounds interleaved."""
    for call in calls.values():
        call()
    torch.cuda.synchronize()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            samples[name].append(clock.sample(call, 0.3)[0])
    return samples


BASES = {"causal, twice the window": ("causal", 2048), "full, the window": ("full", 1024)}  # name: (feature, length)
STRICT = {"window": "full, the window"}
PEER_FEATURES = ("causal", "window", "softcap")
LENGTH = 8192


def rows(backend: str, head_dim: int, clock: CudaClock, backward: bool) -> list[dict[str, Any]]:
    """One row per feature, with its cost against its base."""
    errors = {name: check(name, backend, head_dim) for name in FEATURES}
    shapes = {name: (name, LENGTH) for name in FEATURES} | BASES
    calls, work = {}, {}
    for label, (name, seq) in shapes.items():
        tensors, arguments = inputs(name, head_dim, seq)
        calls[label] = _call(tensors, arguments, backend, backward)
        count = pairs(seq, bool(arguments.get("causal")), arguments.get("window_left"))
        work[label] = count * (TOKENS // seq) * (WIDTH // head_dim)
    found = timed(calls, clock)
    rate = {label: work[label] / statistics.median(found[label]) for label in shapes}
    return [_row(name, head_dim, backward, found[name], rate, errors[name]) for name in FEATURES]


def _row(
    name: str, head_dim: int, backward: bool, times: list[float], rate: dict[str, float], error: float
) -> dict[str, Any]:
    row = {
        "head_dim": head_dim, "pass": "backward" if backward else "forward", "feature": name, "base": FEATURES[name][0],
        "ms": statistics.median(times), "iqr_ms": _iqr(times), "error": error,
        "tflops": (10 if backward else 4) * head_dim * rate[name] / 1e9, "cost": rate[FEATURES[name][0]] / rate[name],
    }  # fmt: skip
    if name in STRICT:
        row |= {"strict_base": STRICT[name], "strict_cost": rate[STRICT[name]] / rate[name]}
    return row


def beside(backend: str, peer: str, head_dim: int, clock: CudaClock) -> list[dict[str, Any]]:
    """Forward, both in the same rounds."""
    found = []
    for name in PEER_FEATURES:
        check(name, peer, head_dim)
        tensors, arguments = inputs(name, head_dim, LENGTH)
        times = timed({one: _call(tensors, arguments, one, False) for one in (backend, peer)}, clock)
        medians = {one: statistics.median(times[one]) for one in times}
        spread = {one: _iqr(times[one]) for one in times}
        faster = medians[peer] / medians[backend]
        found.append(
            {"head_dim": head_dim, "feature": name, "ms": medians, "iqr_ms": spread, "faster_than_peer": faster}
        )
    return found


def compile_all(jobs: list[tuple[str, int, bool, str]]) -> None:
    """Call everything once in processes of their own, so that the caches on disk have it."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # each would start as many processes as there are cores
    with ProcessPoolExecutor(14, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile, *zip(*jobs, strict=True)))


def _compile(backend: str, head_dim: int, backward: bool, name: str) -> None:
    for seq in {LENGTH, *(seq for feature, seq in BASES.values() if feature == name)}:
        tensors, arguments = inputs(name, head_dim, seq)
        _call(tensors, arguments, backend, backward)()
    torch.cuda.synchronize()


def _call(
    tensors: tuple[torch.Tensor, ...], arguments: dict[str, Any], backend: str, backward: bool
) -> Callable[[], Any]:
    if not backward:
        return lambda: attn_backends.attention(*tensors, **arguments, backend=backend)
    leaves = [tensor.requires_grad_() for tensor in tensors]
    out = attn_backends.attention(*leaves, **arguments, backend=backend)
    d_out = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, leaves, d_out, retain_graph=True)


def _iqr(times: list[float]) -> float:
    low, _median, high = statistics.quantiles(times, n=4)
    return high - low


def long_window(backend: str, clock: CudaClock) -> dict[str, Any]:
    """A window of 1,024 at 65,536 tokens beside full causal, 16 heads of 128."""
    tensors = tuple(torch.randn(1, 65536, 16, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    calls: dict[str, Callable[[], Any]] = {
        "full causal": lambda: attn_backends.attention(*tensors, causal=True, backend=backend),
        "window 1024": lambda: attn_backends.attention(*tensors, causal=True, window_left=1023, backend=backend),
    }
    medians = {name: statistics.median(times) for name, times in timed(calls, clock).items()}
    return {"ms": medians, "speedup": medians["full causal"] / medians["window 1024"]}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="triton_tiled")
    parser.add_argument("--peer", default=None)
    parser.add_argument("--head-dim", nargs="+", type=int, default=list(WIDTHS), choices=WIDTHS)
    parser.add_argument("--forward", action="store_true", help="no backward, no long window")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200/features.json"))
    asked = parser.parse_args()
    device = torch.device("cuda")
    clock = CudaClock(device, device_of(device))
    record: dict[str, Any] = {
        "schema": "attn.features/1", "command": _command(asked), "device": device_name(device),
        "versions": versions(default_registry().snapshot()), "clocks": clocks(device), "method": clock.method,
        "backend": asked.backend, "peer": asked.peer, "rounds": ROUNDS,
    }  # fmt: skip
    passes = (False,) if asked.forward else (False, True)
    compile_all([*product((asked.backend,), asked.head_dim, passes, FEATURES)])
    record["rows"] = []
    for head_dim, back in product(asked.head_dim, passes):
        record["rows"] += rows(asked.backend, head_dim, clock, back)
        _save(record, asked.out)
        for row in record["rows"][-len(FEATURES) :]:
            print(_line(row))
    if not asked.forward:
        record["window at 65536"] = long_window(asked.backend, clock)
        print(record["window at 65536"])
        _save(record, asked.out)
    if asked.peer is not None:
        compile_all([*product((asked.peer,), asked.head_dim, (False,), PEER_FEATURES)])
        record["beside"] = []
        for head_dim in asked.head_dim:
            record["beside"] += beside(asked.backend, asked.peer, head_dim, clock)
            _save(record, asked.out)
            for row in record["beside"][-len(PEER_FEATURES) :]:
                print(f"{head_dim:4} {row['feature']:8} {row['faster_than_peer']:.2f} times as fast as {asked.peer}")


def _command(asked: argparse.Namespace) -> str:
    peer = f" --peer {asked.peer}" if asked.peer else ""
    widths = "" if asked.head_dim == list(WIDTHS) else f" --head-dim {' '.join(map(str, asked.head_dim))}"
    return f"python benchmarks/features.py --backend {asked.backend}{peer}{widths}{' --forward' * asked.forward}"


def _save(record: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _line(row: dict[str, Any]) -> str:
    text = (
        f"{row['head_dim']:4} {row['pass']:8} {row['feature']:8} {row['tflops']:6.0f} TFLOP/s  cost {row['cost']:.2f}"
    )
    if "strict_cost" in row:
        text += f" ({row['strict_cost']:.2f} of {row['strict_base']})"
    return text


if __name__ == "__main__":
    main()
