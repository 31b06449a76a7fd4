"""Launching the portable forward kernel on `Operands`."""

from __future__ import annotations

import torch

from attn_backends.backends.fp8.operands import Operands
from attn_backends.backends.fp8.portable.configs import Config, config_for
from attn_backends.backends.fp8.portable.forward import attention_forward
from attn_backends.backends.fp8.quantize.launch import architecture, leaves_32_bits, on_device


def launch_forward(
    operands: Operands,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    scale: float,
    band: tuple[int, int] = (-1, -1),
    config: Config | None = None,
) -> None:
    """Write `out` and, where given, `lse`.

    out: [B, Hq, Sq, Dv], packed [1, Hq, Tq, Dv], any strides, any float type; lse: float32 [B, Hq, Sq], packed [1, Hq, Tq]
    band: keys that a query sees left and right of its own, on the bottom-right diagonal; -1 = all; causal is (-1, 0)
    config: tiles in place of the shipped ones
    """
    heads, width = operands.q8.shape[1], operands.q8.shape[3]
    width_v = operands.vt8.shape[2]
    config = config or config_for(architecture(out.device), max(width, width_v))
    packed_q, packed_k = operands.starts_q is not None, operands.starts_k is not None
    reach = operands.longest_q + operands.longest_k
    left, right = (min(limit, reach) for limit in band)
    tiles = -(-operands.longest_q // config.rows)
    with on_device(out.device):
        attention_forward[(tiles * heads * operands.batch,)](
            operands.q8, operands.k8, operands.vt8, operands.q_scale, operands.k_scale, operands.v_scale, out, lse,
            operands.starts_q, operands.starts_k,
            operands.q8.stride(), operands.k8.stride(), operands.vt8.stride(),
            operands.q_scale.stride(), operands.k_scale.stride(), operands.v_scale.stride(),
            out.stride(), (0, 0, 0) if lse is None else lse.stride(),
            heads, heads // operands.k8.shape[1], operands.longest_q, operands.longest_k, scale, left, right,
            BLOCK_M=config.rows, BLOCK_N=config.columns, D=width, DV=width_v,
            PACKED_Q=packed_q, PACKED_K=packed_k, LEFT=left >= 0, RIGHT=right >= 0,
            EVEN_K=not packed_k and operands.longest_k % config.columns == 0,
            WIDE=leaves_32_bits(operands.q8, operands.k8), NATIVE=out.device.type != "cpu", STORE_LSE=lse is not None,
            num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip
