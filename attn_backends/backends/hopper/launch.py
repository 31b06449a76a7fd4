"""Launching the forward kernel for one call."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from attn_backends.backends.hopper.configs import ROWS, Config, config_for
from attn_backends.backends.hopper.descriptors import describe
from attn_backends.backends.hopper.kernel.forward import attention_forward

LOG2_E = 1.4426950408889634
WARPS = 4  # of one warpgroup


def launch_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    scale: float,
    causal: bool,
    config: Config,
) -> None:
    """Write `out` and `lse`.

    q, k, v, out: describable, [batch, head, token, width]; lse: float32, [batch, head, token], its last stride 1
    scale: of the scores, positive
    """
    batch, heads, seq_q, _width = q.shape
    kv_heads, seq_k = k.shape[1], k.shape[2]
    tickets = -(-seq_q // (ROWS * config.q_tiles)) * batch * heads
    blocks = min(tickets, multiprocessors(q.device)) if config.persistent else tickets
    counter = counter_of(q.device) if config.dynamic else None
    attention_forward[(blocks,)](
        describe(q, ROWS), describe(k, config.keys), describe(v, config.keys), describe(out, ROWS),
        lse, counter, lse.stride(0), lse.stride(1), scale * LOG2_E,
        batch, heads, heads // kv_heads, seq_q, seq_k, sweep_of(config.sweep_bytes, k, batch * heads, heads // kv_heads),
        CAUSAL=causal, EVEN_K=seq_k % config.keys == 0, **constants_of(config),
    )  # fmt: skip


def counter_of(device: torch.device) -> torch.Tensor:
    """Two numbers that are 0, and will be again where they are kept: those of the default stream, whose calls follow each other.

    On another stream, in a capture or in the warm-up of one, memory may be another's by the next call: there they are new.
    """
    if device.type != "cuda" or torch.cuda.current_stream(device) != torch.cuda.default_stream(device):
        return torch.zeros(2, dtype=torch.int32, device=device)
    counter = _counters.get(device)
    if counter is None:
        counter = _counters.setdefault(device, torch.zeros(2, dtype=torch.int32, device=device))
    return counter


_counters: dict[torch.device, torch.Tensor] = {}


def constants_of(config: Config) -> dict[str, Any]:
    """What a pipeline fixes when the kernel is compiled, and Triton's options."""
    return {
        "HEAD_DIM": config.head_dim,
        "ROWS": ROWS,
        "Q_TILES": config.q_tiles,
        "KEYS": config.keys,
        "STAGES": config.stages,
        "K_STAGES": config.k_stages or config.stages,
        "S_STAGES": config.s_stages,
        "SHARED_OUT": config.shared_out,
        "Q_REGISTERS": config.q_registers,
        "LATE_WAIT": config.late_wait,
        "PING_PONG": config.ping_pong,
        "DYNAMIC": config.dynamic,
        "REGISTERS": config.registers,
        "num_warps": WARPS,
        "maxnreg": config.max_registers,
    }


def sweep_of(sweep_bytes: int, k: torch.Tensor, sequences: int, gqa_ratio: int) -> int:
    """How many heads to work on at a time: as many as have K and V in the L2 cache together, in sweeps of one size."""
    if not sweep_bytes:
        return 1
    per_group = 2 * k.shape[2] * k.shape[3] * k.element_size()
    most = max(1, sweep_bytes // per_group) * gqa_ratio
    sweeps = -(-sequences // most)
    return -(-sequences // sweeps)


def chosen(head_dim: int, causal: bool, seq_q: int) -> Config:
    """The shipped pipeline. Raises LookupError where there is none."""
    config = config_for(head_dim, causal, seq_q)
    if config is None:
        raise LookupError(f"no pipeline for heads of {head_dim}: the manifest refuses such calls")
    return config


@cache
def multiprocessors(device: torch.device) -> int:
    """Of the device."""
    return torch.cuda.get_device_properties(device).multi_processor_count
