"""What both attention kernels read: q, k and V transposed in e4m3, and their scales.

V lies transposed because the second product of Hopper's fp8 units wants the keys of one column side by side, and
inside each group of 16 keys in the order in which an accumulator of scores holds them in its registers, so that the
weights become that product's operand where they are:

    vt8[..., d, 16 g + 4 t + 2 j + e] = v[16 g + 8 j + 2 t + e, d]          t in 0..3, j and e in 0..1
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attn_backends.backends.fp8.block import BLOCK

FORMAT = torch.float8_e4m3fn
GROUP = 16  # keys whose order is permuted among themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """Quantised operands of one call.

    B batch, Hq/Hkv heads, Sq/Sk tokens (packed: of all sequences), D/Dv widths, N blocks of 128 tokens of the longest
    sequence.

    q8                [B, Hq, Sq, D] e4m3; packed [1, Hq, Tq, D]; any strides
    k8                [B, Hkv, Sk, D] e4m3; packed [1, Hkv, Tk, D]
    vt8               [B, Hkv, Dv, Sp] e4m3, contiguous, keys in the order above; Sp = the longest Sk rounded up to blocks, at least one; what lies
                      behind a sequence in its last block is 0
    q_scale           float32 [B, Hq, N], multiplies on read; strides may be 0
    k_scale, v_scale  float32 [B, Hkv, N]
    softmax_scale     that q_scale was made for: both and log2(e) multiply to a power of two, and k_scale is one, but for blocks
                      of zeros; None: scales are a caller's, any number, negative ones as well
    starts_q, starts_k  int32 [B + 1] where tokens are packed; scales and vt8 have an entry for each sequence
    longest_q, longest_k  of a sequence
    """

    q8: torch.Tensor
    k8: torch.Tensor
    vt8: torch.Tensor
    q_scale: torch.Tensor
    k_scale: torch.Tensor
    v_scale: torch.Tensor
    longest_q: int
    longest_k: int
    softmax_scale: float | None = None
    starts_q: torch.Tensor | None = None
    starts_k: torch.Tensor | None = None

    @property
    def batch(self) -> int:
        """Sequences."""
        return self.vt8.shape[0]


def blocks_of(tokens: int) -> int:
    """Scales of so many tokens; one at least, so that no tensor is empty."""
    return max(1, -(-tokens // BLOCK))


def key_order(tokens: int) -> torch.Tensor:
    """int64 [tokens]: which key stands at each place of a permuted V^T; tokens a multiple of 16."""
    place = torch.arange(tokens)
    within = place % GROUP
    return place - within + 8 * (within // 2 % 2) + 2 * (within // 4) + within % 2
