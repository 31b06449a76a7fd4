"""`gather_kv` on a GPU: K and V of all sequences out of their pages in one launch. Needs triton; imported where it is called.

Not for float64, nor for e4m3 before sm_89, which cannot read it: `takes` says so, and torch gathers those.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attn_backends.host.fused_write import on_device, power_of_two
from attn_backends.host.kernels.gather import gather_tokens

TOKENS = 32  # of a program
FP8_SINCE = (8, 9)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_STORED = (*_FLOATS, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
_SCALE = {"none": "none", "per_tensor": "head", "per_head": "head", "per_channel": "channel", "per_token_head": "token"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One cache as a view [pages, page, Hkv, D], its descale ([pages, page, Hkv] by token), and the results' dtype."""

    pool: torch.Tensor
    descale: torch.Tensor | None
    granularity: str
    dtype: torch.dtype

    @property
    def scale_strides(self) -> tuple[int, ...]:
        """(page, cell, head) by token, (head, column) by channel, else (sequence, head)."""
        scale = self.descale
        if scale is None or self.granularity == "per_tensor":
            return 0, 0
        return (0, scale.stride(0)) if self.granularity == "per_head" and scale.dim() == 1 else scale.stride()


def takes(source: Source) -> bool:
    """Whether the kernel reads such a cache on its GPU."""
    if source.pool.device.type != "cuda" or source.pool.dtype not in _STORED or source.dtype not in _FLOATS:
        return False
    fp8 = source.pool.dtype in (torch.float8_e4m3fn, torch.float8_e5m2)
    return not fp8 or torch.cuda.get_device_capability(source.pool.device) >= FP8_SINCE


def gather(
    k: Source, v: Source, table: torch.Tensor, starts: torch.Tensor, *, total: int, longest: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(k [total, Hkv, D], v [total, Hkv, Dv]) of sequences that start at `starts`, int32 [B + 1]."""
    pages, page_size, heads, width = k.pool.shape
    width_v = v.pool.shape[3]
    device = k.pool.device
    out_k = torch.empty(total, heads, width, dtype=k.dtype, device=device)
    out_v = torch.empty(total, heads, width_v, dtype=v.dtype, device=device)
    if total:
        with on_device(device):
            gather_tokens[(-(-longest // TOKENS), 2 * heads, starts.shape[0] - 1)](
                k.pool, v.pool, out_k, out_v, k.descale, v.descale, table, starts, k.pool.stride(), v.pool.stride(),
                out_k.stride(), out_v.stride(), k.scale_strides, v.scale_strides, table.stride(), page_size, pages, heads,
                width, width_v, BLOCK_T=TOKENS, BLOCK_D=power_of_two(width), BLOCK_DV=power_of_two(width_v),
                K_SCALE=_SCALE[k.granularity], V_SCALE=_SCALE[v.granularity],
            )  # fmt: skip
    return out_k, out_v
