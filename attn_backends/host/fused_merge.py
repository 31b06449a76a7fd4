"""`merge_states` on a GPU for dense states without gradients: one launch. Needs triton; imported where it is called."""

from __future__ import annotations

import torch

from attn_backends.host.fused_write import on_device, power_of_two
from attn_backends.host.kernels.merge import merge_rows

TILE = 2048  # numbers of a program
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def takes(states: Tensors) -> bool:
    """Whether the kernel merges such states: on a GPU, of at most 32 bits, without gradients."""
    if any(one.device.type != "cuda" or one.dtype not in _FLOATS for one in states) or torch.compiler.is_compiling():
        return False
    return not (torch.is_grad_enabled() and any(one.requires_grad for one in states))


def merge(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [B, S, H, Dv] of out_a's dtype, lse float32 [B, H, S]) of states of these shapes, any strides."""
    batch, tokens, heads, width = out_a.shape
    out = torch.empty(out_a.shape, dtype=out_a.dtype, device=out_a.device)
    lse = torch.empty(batch, heads, tokens, dtype=torch.float32, device=out_a.device)
    rows, block_d = batch * tokens * heads, power_of_two(width)
    block_r = max(1, TILE // block_d)
    by_token = [one.transpose(1, 2).stride() for one in (lse_a, lse_b, lse)]
    if rows:
        with on_device(out_a.device):
            merge_rows[(-(-rows // block_r),)](
                out_a, lse_a, out_b, lse_b, out, lse, out_a.stride(), by_token[0], out_b.stride(), by_token[1], out.stride(),
                by_token[2], rows, tokens, heads, width, BLOCK_R=block_r, BLOCK_D=block_d,
            )  # fmt: skip
    return out, lse
