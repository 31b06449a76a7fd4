"""`BlockMask`: which blocks of the score matrix a call may see, for block-sparse attention.

    visible[b, h, i, j] = blocks[b, h, i // block_q, j // block_k] and mask[b, h, i, j]

Blocks count from the first query and the first key of each sequence, whatever the causal alignment; the result
composes with causal, windows and `attn_mask` by intersection. Letters: B batch, Hq query heads, Sq/Sk the longest
query and key sequence of the call. Not a kernel's tile list: a backend is free to read `blocks` as it likes. Light
core: works on tensors by their methods and imports no torch itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attn_backends.errors import RequestError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, eq=False)
class BlockMask:
    """A block-sparse mask; the tensors stay the caller's and are never modified.

    blocks: bool [B | 1, Hq | 1, ceil(Sq / block_q), ceil(Sk / block_k)]; True = keys of the block may be visible
    block_size: queries and keys per block, one int for both or (block_q, block_k); kept as the pair
    mask: optional bool, 2 to 4 dims that broadcast to [B, Hq, Sq, Sk], intersected inside visible blocks

    Raises RequestError for another dtype, rank, device or a block size below 1.
    """

    blocks: torch.Tensor
    block_size: int | tuple[int, int]
    mask: torch.Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "block_size", _read_block_size(self.block_size))
        _check_bool("block_mask.blocks", self.blocks, (4,))
        if self.mask is not None:
            _check_bool("block_mask.mask", self.mask, (2, 3, 4))
            if self.mask.device != self.blocks.device:
                raise RequestError("block_mask.mask", f"a tensor on {self.mask.device}", f"on {self.blocks.device}")

    @property
    def block_q(self) -> int:
        """Queries per block."""
        return self._pair[0]

    @property
    def block_k(self) -> int:
        """Keys per block."""
        return self._pair[1]

    @property
    def _pair(self) -> tuple[int, int]:
        size = self.block_size
        return (size, size) if isinstance(size, int) else size

    def check(self, *, batch: int, num_q_heads: int, seq_q: int, seq_k: int) -> None:
        """Raise RequestError unless this mask fits a call of these sizes."""
        rows, columns = -(-seq_q // self.block_q), -(-seq_k // self.block_k)
        for axis, got, legal in (
            (0, self.blocks.shape[0], {1, batch}),
            (1, self.blocks.shape[1], {1, num_q_heads}),
            (2, self.blocks.shape[2], {rows}),
            (3, self.blocks.shape[3], {columns}),
        ):
            if got not in legal:
                wanted = f"[{batch} or 1, {num_q_heads} or 1, {rows}, {columns}]"
                raise RequestError("block_mask.blocks", tuple(self.blocks.shape), wanted, hint=f"dim {axis} differs")
        if self.mask is not None:
            check_broadcast("block_mask.mask", tuple(self.mask.shape), (batch, num_q_heads, seq_q, seq_k))

    def dense(self, seq_q: int, seq_k: int) -> torch.Tensor:
        """The same mask token by token: bool [B | 1, Hq | 1, seq_q, seq_k], new memory.

        Raises RequestError where the blocks do not reach that far.
        """
        blocks = self.blocks
        self._check_reach(seq_q, seq_k)
        rows = blocks.repeat_interleave(self.block_q, dim=2)[:, :, :seq_q]
        tokens = rows.repeat_interleave(self.block_k, dim=3)[..., :seq_k]
        return tokens.clone() if self.mask is None else tokens & corner(self.mask, seq_q, seq_k)

    def of_sequence(self, index: int, seq_q: int, seq_k: int) -> torch.Tensor:
        """What sequence `index` of the batch may see: bool [Hq | 1, seq_q, seq_k]."""
        mask = None if self.mask is None else sequence_entry(self.mask, index)
        return BlockMask(sequence_entry(self.blocks, index), self.block_size, mask).dense(seq_q, seq_k)[0]

    def _check_reach(self, seq_q: int, seq_k: int) -> None:
        reach = (self.blocks.shape[2] * self.block_q, self.blocks.shape[3] * self.block_k)
        if seq_q > reach[0] or seq_k > reach[1]:
            raise RequestError("block_mask", (seq_q, seq_k), f"at most {reach}, which is what the blocks cover")


def as_four_dims(mask: torch.Tensor) -> torch.Tensor:
    """A view of a mask of 2 to 4 dims as [B | 1, Hq | 1, Sq | 1, Sk | 1]."""
    return mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))


def sequence_entry(mask: torch.Tensor, index: int) -> torch.Tensor:
    """The batch entry of one sequence, broadcast entries shared: [1, Hq | 1, Sq | 1, Sk | 1]."""
    full = as_four_dims(mask)
    entry = index if full.shape[0] > 1 else 0
    return full[entry : entry + 1]


def corner(mask: torch.Tensor, seq_q: int, seq_k: int) -> torch.Tensor:
    """The first seq_q rows and seq_k columns; dims of size 1 stay, to broadcast."""
    full = as_four_dims(mask)
    rows = full if full.shape[2] == 1 else full[:, :, :seq_q]
    return rows if full.shape[3] == 1 else rows[..., :seq_k]


def check_broadcast(field: str, shape: tuple[int, ...], full: tuple[int, int, int, int]) -> None:
    """Raise RequestError unless a mask of 2 to 4 dims broadcasts from the right to [B, Hq, Sq, Sk] = `full`."""
    legal = 2 <= len(shape) <= 4
    if not legal or any(got not in (1, want) for got, want in zip(reversed(shape), reversed(full), strict=False)):
        raise RequestError(field, shape, f"2 to 4 dims that broadcast from the right to {full}")


def _read_block_size(raw: Any) -> tuple[int, int]:
    pair = (raw, raw) if isinstance(raw, int) else tuple(raw) if isinstance(raw, list | tuple) else ()
    if len(pair) != 2 or any(type(size) is not int or size < 1 for size in pair):
        raise RequestError("block_mask.block_size", raw, "a whole number >= 1, or a pair (queries, keys) of them")
    return pair


def _check_bool(field: str, tensor: Any, ranks: tuple[int, ...]) -> None:
    dtype = str(getattr(tensor, "dtype", type(tensor).__name__))
    if dtype != "torch.bool":
        raise RequestError(field, dtype, "a tensor of dtype torch.bool, True = visible")
    if tensor.dim() not in ranks:
        raise RequestError(field, tuple(tensor.shape), f"a tensor of {' or '.join(str(rank) for rank in ranks)} dims")
