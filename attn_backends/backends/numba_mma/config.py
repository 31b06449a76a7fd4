"""`Config`: what a kernel is compiled for, and the sizes that follow from it.

A tile of K or V lies in shared memory as KEYS rows of `pitch` bytes. A row is `chunks` pieces of 16 bytes; piece c of row r
lies at place c ^ (r mod 8), so that the same piece of eight rows falls into eight different groups of banks.
"""

from __future__ import annotations

from dataclasses import dataclass

KEYS = 64  # of a tile
ROWS = 16  # queries of a warp
CHUNK = 16  # bytes that one thread copies at a time
FAR = 1 << 29  # as far as any key is from another: positions count in 32 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One kernel."""

    head_dim: int
    half: str  # "float16" or "bfloat16"
    softcap: bool = False  # its tanh takes registers
    lazy: bool = False  # leave earlier sums alone where no row of the warp has a new top: the same bits
    warps: int = 4
    blocks: int = 2  # that a multiprocessor shall hold, at least: bounds the registers of a thread

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.warps

    @property
    def rows(self) -> int:
        """Queries of a block."""
        return ROWS * self.warps

    @property
    def pitch(self) -> int:
        """Bytes from one row of a tile to the next."""
        return 2 * self.head_dim

    @property
    def chunks(self) -> int:
        """Pieces of a row."""
        return self.pitch // CHUNK

    @property
    def tile_bytes(self) -> int:
        """Of K, or of V."""
        return KEYS * self.pitch

    @property
    def stage_bytes(self) -> int:
        """Of K and V together; the queries of a block fit there as well."""
        return max(2 * KEYS, self.rows) * self.pitch

    @property
    def shared_bytes(self) -> int:
        """Of a block: while one tile is used, the next one arrives."""
        return 2 * self.stage_bytes


BLOCKS = {64: 3, 128: 2}  # the most that fit without spills, whatever ptxas


def shipped(head_dim: int, half: str, softcap: bool = False) -> Config:
    """The kernel for heads of this width and numbers of this kind."""
    return Config(head_dim=head_dim, half=half, softcap=softcap, blocks=BLOCKS[head_dim])
