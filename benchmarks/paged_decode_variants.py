"""What benchmarks/paged_decode_tiles.py times: shapes, tiles, ways to merge; paged_decode_timing.py says how."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

from paged_decode_inputs import PAGE, Heads

from attn_backends.backends.paged_decode.configs import Config

MERGES = ("ships", "second")


class Tile(NamedTuple):
    """Tiles and launch options of a variant, those of a row of configs.toml.

    registers: whether the next tile of keys waits there
    rows: 0 is 64 where a prompt decides on the tiles, else 16
    maxnreg: registers of a thread at most, 0 for any
    combined: rows of a program of the second kernel, 0 for what ships
    """

    columns: int
    warps: int
    stages: int
    registers: bool = False
    rows: int = 0
    maxnreg: int = 0
    combined: int = 0

    def __str__(self) -> str:
        numbers = ",".join(str(int(one)) for one in self[:4])
        more = zip(("r", "n", "c"), self[4:], strict=True)
        return numbers + "".join(f" {letter}{one}" for letter, one in more if one)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """New tokens and keys of every sequence.

    one_for_all: every query sees every key, in a packed batch, and the LSE is asked for: the prefix of a cascade
    prefix: keys besides, which all sequences have in common
    cascade: whether those are attended once for all, and `keys` apart; variants are of the prefix, the rest is as shipped
    """

    new: tuple[int, ...]
    keys: tuple[int, ...]
    heads: Heads = (32, 8, 128)
    one_for_all: bool = False
    prefix: int = 0
    cascade: bool = False

    @property
    def tiled(self) -> Shape:
        """What tiles are for: the prefix of a cascade, else the shape itself."""
        if not self.cascade:
            return self
        return Shape(new=(sum(self.new),), keys=(self.prefix,), heads=self.heads, one_for_all=True)

    @property
    def mixed(self) -> bool:
        """Whether prompts decide on the tiles."""
        return max(self.tiled.new) > 1


def _decodes(count: int, keys: int, heads: Heads = (32, 8, 128)) -> Shape:
    return Shape(new=(1,) * count, keys=(keys,) * count, heads=heads)


_CHUNK = 2048
SHAPES = {
    "1x32k": _decodes(1, 32768),
    "16x4k": _decodes(16, 4096),
    "8x8k-mha": _decodes(8, 8192, (16, 16, 128)),
    "64x8k": _decodes(64, 8192),
    "64x4k-d64": _decodes(64, 4096, (64, 8, 64)),
    # slower than FlashInfer when a selection was judged by its regret
    "1x19k-d64": _decodes(1, 19220, (64, 8, 64)),
    "139x890": _decodes(139, 890, (1, 1, 128)),
    "19x7k-d64": _decodes(19, 7680, (4, 2, 64)),
    "65x12k-d64": _decodes(65, 12800, (8, 2, 64)),
    "1x600-d64": _decodes(1, 600, (16, 8, 64)),
    # lengths that no wave fits by itself
    "33-ragged": Shape(new=(1,) * 33, keys=tuple(100 + 7919 * place % 7900 for place in range(33))),
    # a chunk of a prompt and decodes, together and apart
    "mixed": Shape(new=(_CHUNK, *(1,) * 63), keys=(8192 + _CHUNK, *(8192,) * 63)),
    "chunk": Shape(new=(_CHUNK,), keys=(8192 + _CHUNK,)),
    "63x8k": _decodes(63, 8192),
    # appends that FlashInfer served faster when a selection was judged by its regret
    "2x455-16k-d64": Shape(new=(455,) * 2, keys=(16375,) * 2, heads=(8, 8, 64)),
    "3x576-4k-d64": Shape(new=(576,) * 3, keys=(4032,) * 3, heads=(16, 8, 64)),
    "21x190-2k": Shape(new=(190,) * 21, keys=(2432,) * 21, heads=(8, 1, 128)),
    "12x896-5k": Shape(new=(896,) * 12, keys=(4800,) * 12, heads=(8, 2, 128)),
    # a prefix that 32 decodes have in common: that part alone, the cascade, and every sequence by itself
    "prefix": Shape(new=(32,), keys=(8192,), one_for_all=True),
    "cascade": Shape(new=(1,) * 32, keys=(256,) * 32, prefix=8192, cascade=True),
    "plain": Shape(new=(1,) * 32, keys=(256,) * 32, prefix=8192),
}
_WIDE, _TALL, _LONG = Tile(64, 4, 3), Tile(64, 2, 3), Tile(128, 4, 3)
_EIGHT: dict[Tile, tuple[int, ...]] = {_WIDE: (3,), _TALL: (3, 4), Tile(64, 2, 4): (4,), _LONG: (2, 3)}
DECODE_TILES: dict[str, dict[Tile, tuple[int, ...]]] = {
    "bf16": {Tile(64, 4, 4): (2,), _WIDE: (2, 3), Tile(32, 2, 4): (3, 4), Tile(64, 4, 1, registers=True): (2,)},
    "e4m3": _EIGHT,
    "int8": _EIGHT,
    "int8 by token": _EIGHT,
    "V e4m3": {Tile(64, 4, 4): (2,), _WIDE: (3,), Tile(32, 2, 4): (4,), _LONG: (2,)},
}
_PROMPT = Tile(64, 4, 2)
_TALLER: dict[Tile, tuple[int, ...]] = {Tile(64, 8, 2, rows=128): (1,), Tile(64, 8, 3, rows=128): (1,)}
# Of one tile for a few rows of queries, many splits: how many, and how many rows the second kernel's programs have.
PREFIX_TILES: dict[Tile, tuple[int, ...]] = {
    **{_PROMPT._replace(combined=rows): (2,) for rows in (2, 8, 16)},
    _PROMPT: (1,), Tile(64, 4, 3): (1, 2), Tile(32, 4, 3): (2, 3), Tile(32, 4, 4): (3,), Tile(128, 4, 2): (1,), **_TALLER,
}  # fmt: skip
PROMPT_TILES: dict[str, dict[Tile, tuple[int, ...]]] = {
    "16 bits": {
        Tile(64, 4, 3): (2,), Tile(32, 4, 2): (3,), Tile(32, 4, 3, maxnreg=168): (3,), Tile(32, 4, 4): (3,), **_TALLER,
        Tile(128, 8, 2, rows=128): (1,),
    },
    "8 bits": {
        Tile(64, 4, 3): (2,), Tile(64, 4, 2, maxnreg=168): (3,), Tile(64, 4, 3, maxnreg=168): (3,),
        Tile(32, 4, 3, maxnreg=168): (3,), **_TALLER, Tile(128, 8, 2, rows=128): (1,),
    },
}  # fmt: skip


def default_tiles(shape: str, store: str) -> dict[Tile, tuple[int, ...]]:
    """Tiles worth a time there, with programs per multiprocessor."""
    made = SHAPES[shape]
    if made.tiled.one_for_all:
        return PREFIX_TILES
    if made.mixed:
        return PROMPT_TILES["16 bits" if store == "bf16" else "8 bits"]
    return DECODE_TILES[store]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A tile, None for what ships, the programs per multiprocessor, and how splits are merged."""

    tile: Tile | None
    programs: int = 0
    merge: str = "ships"

    @property
    def name(self) -> str:
        """`ships`, or `128,4,3,0 p2`; with the merge where that is not what ships."""
        tile = "ships" if self.tile is None else f"{self.tile} p{self.programs}"
        return tile if self.merge == "ships" else f"{tile} {self.merge}"

    def key(self, shape: str, store: str) -> str:
        """Of what has to be compiled for it: shapes may have the kernels of a tile in common, not of what ships."""
        if self.tile is None:
            return f"{shape} {store} {self.name}"
        made = SHAPES[shape].tiled
        room = max(16, 1 << (len(made.new) - 1).bit_length())
        whole = -(-(max(made.keys) + made.prefix) // PAGE) % 16 == 0
        called = f"{made.heads} {room} {whole} {max(made.new)} {len(set(made.new))} {made.one_for_all}"
        main = dataclasses.replace(self, programs=0, tile=self.tile._replace(combined=0))
        return f"{called} {store} {main.name}"

    def config(self, shape: Shape) -> Config | None:
        """A row of configs.toml for any call."""
        if self.tile is None:
            return None
        tile = self.tile
        return Config(
            arch=0, last_arch=999, bytes=2, stored=4, width=256, rows=tile.rows or (64 if shape.mixed else 16), columns=tile.columns,
            warps=tile.warps, stages=tile.stages, programs=self.programs or 2, registers=tile.registers, maxnreg=tile.maxnreg,
        )  # fmt: skip


def variants_of(shape: str, tiles: dict[Tile, tuple[int, ...]], merges: list[str]) -> list[Variant]:
    """What ships, then every tile with every number of programs; each merged in every way asked for."""
    pairs = [(tile, programs) for tile, counts in tiles.items() for programs in counts]
    return [
        Variant(tile=tile, programs=programs, merge=merge)
        for merge in (merges[:1] if SHAPES[shape].mixed else merges)
        for tile, programs in [(None, 0), *pairs]
    ]
