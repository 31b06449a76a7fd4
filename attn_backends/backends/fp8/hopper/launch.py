"""One launch of the pipeline, from operands in e4m3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attn_backends.backends.fp8.block import BLOCK
from attn_backends.backends.fp8.hopper.configs import ROWS, Config, config_for
from attn_backends.backends.fp8.hopper.descriptors import describe
from attn_backends.backends.fp8.hopper.kernel.forward import attention_forward
from attn_backends.backends.hopper.launch import LOG2_E, WARPS, counter_of, multiprocessors, sweep_of

if TYPE_CHECKING:
    import torch

    from attn_backends.backends.fp8.operands import Operands


def launch_forward(
    operands: Operands,
    out: torch.Tensor,
    lse: torch.Tensor,
    scale: float,
    causal: bool,
    config: Config | None = None,
) -> None:
    """Write `out` [B, Hq, Sq, Dv], describable, 16 bits, and `lse` float32 [B, Hq, Sq], its last stride 1.

    scale: of the scores, positive; config: a pipeline in place of the one that is shipped, to measure it.
    """
    q, k, v = operands.q8, operands.k8, operands.vt8
    batch, heads, seq_q, width = q.shape
    kv_heads, seq_k = k.shape[1], k.shape[2]
    config = config or chosen(width, causal)
    tickets = -(-seq_q // (ROWS * config.q_tiles)) * batch * heads
    attention_forward[(min(tickets, multiprocessors(q.device)),)](
        describe(q, ROWS, width), describe(k, config.keys, width), describe(v, width, config.keys),
        describe(out, ROWS, width // max(config.parts, 1)), lse, counter_of(q.device) if config.dynamic else None,
        operands.q_scale, operands.k_scale, operands.v_scale, lse.stride(0), lse.stride(1),
        *operands.q_scale.stride(), *operands.k_scale.stride(), *operands.v_scale.stride(), scale * LOG2_E,
        batch, heads, heads // kv_heads, seq_q, seq_k, sweep_of(config.sweep_bytes, k, batch * heads, heads // kv_heads),
        CAUSAL=causal, EVEN_K=seq_k % config.keys == 0, ANY_SCALE=operands.softmax_scale != scale, **constants_of(config),
    )  # fmt: skip


def constants_of(config: Config) -> dict[str, Any]:
    """What a pipeline fixes when the kernel is compiled, and Triton's options."""
    return {
        "HEAD_DIM": config.head_dim,
        "ROWS": ROWS,
        "Q_TILES": config.q_tiles,
        "KEYS": config.keys,
        "STAGES": config.stages,
        "BLOCK": BLOCK,
        "TWO_LEVEL": config.two_level,
        "Q_REGISTERS": config.q_registers,
        "PING_PONG": config.ping_pong,
        "DYNAMIC": config.dynamic,
        "PARTS": config.parts,
        "LATE_WAIT": config.late_wait,
        "REGISTERS": config.registers,
        "launch_pdl": True,  # what stands before `gdc_wait` may run beside the end of the kernel ahead, the pass above all
        "num_warps": WARPS,
        "maxnreg": config.max_registers,
    }


def chosen(head_dim: int, causal: bool) -> Config:
    """The shipped pipeline. Raises LookupError where there is none."""
    config = config_for(head_dim, causal)
    if config is None:
        raise LookupError(f"no pipeline for heads of {head_dim}: the manifest refuses such calls")
    return config
