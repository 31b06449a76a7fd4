"""`Heads`: how many heads and how wide, from whatever words a config uses; and the check that all of it is there."""

from __future__ import annotations

from dataclasses import dataclass

from attn_backends.planning import aliases as a
from attn_backends.planning.aliases import Aliases
from attn_backends.planning.errors import ConfigError
from attn_backends.planning.section import Section

MAX_LAYERS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The words of one side of a model."""

    heads: Aliases
    kv_heads: Aliases
    layers: Aliases
    positions: Aliases
    width: Aliases = a.WIDTH


ENCODER = Side(
    heads=a.ENCODER_HEADS, kv_heads=a.ENCODER_KV_HEADS, layers=a.ENCODER_LAYERS, positions=a.ENCODER_POSITIONS
)
DECODER = Side(
    heads=a.DECODER_HEADS, kv_heads=a.DECODER_KV_HEADS, layers=a.DECODER_LAYERS, positions=a.DECODER_POSITIONS
)
VISION = Side(
    heads=a.ENCODER_HEADS,
    kv_heads=a.ENCODER_KV_HEADS,
    layers=a.ENCODER_LAYERS,
    positions=a.ENCODER_POSITIONS,
    width=a.VISION_WIDTH,
)


@dataclass(frozen=True, slots=True)
class Heads:
    """Query and KV heads, widths of q/k and v, and the widths over a compressed cache (MLA)."""

    q: int
    kv: int
    dim_qk: int
    dim_v: int
    latent: tuple[int, int] | None = None


def require_structure(section: Section, side: Side) -> None:
    """Raise one ConfigError that names every key without which nothing can be said."""
    wanted = [side.heads, side.layers]
    if section.has(a.KV_RANK) or section.has(a.NOPE_DIM):
        wanted += [a.NOPE_DIM, a.ROPE_DIM, a.HEAD_DIM_V]
    elif not section.has(a.HEAD_DIM):
        wanted.append((*side.width, *a.HEAD_DIM))
    section.require(*wanted)


def read_layers(section: Section, side: Side) -> int:
    """How many layers."""
    layers = (section.whole(side.layers) or 0) + (section.whole(a.MORE_LAYERS, least=0) or 0)
    if layers > MAX_LAYERS:
        raise section.wrong(a.LAYERS[0], layers, f"at most {MAX_LAYERS}")
    return layers


def read_heads(section: Section, side: Side, variant: str = "full") -> Heads:
    """Heads of the layers of one variant ("full" or "sliding": some models give them different heads)."""
    own = a.VARIANTS.get(variant, {})
    q = section.whole((*own.get("heads", ()), *side.heads)) or 0
    if section.has(a.NOPE_DIM):
        return _latent_heads(section, q)
    dim = section.whole((*own.get("head_dim", ()), *a.HEAD_DIM)) or _width_per_head(section, side, q)
    dim_v = section.whole((*own.get("head_dim_v", ()), *a.HEAD_DIM_V)) or dim
    kv = section.whole(own.get("kv_heads", ())) or _kv_heads(section, side, q)
    if q % kv:
        raise ConfigError(f"{q} query heads do not divide among {kv} KV heads", where=section.where)
    return Heads(q, kv, dim, dim_v)


def _latent_heads(section: Section, q: int) -> Heads:
    """MLA: every head has its own k and v once decompressed; the cache holds one latent of rank + rope width."""
    rope, rank = section.whole(a.ROPE_DIM, least=0) or 0, section.whole(a.KV_RANK)
    dim_qk, dim_v = (section.whole(a.NOPE_DIM) or 0) + rope, section.whole(a.HEAD_DIM_V) or 0
    return Heads(q, q, dim_qk, dim_v, None if rank is None else (rank + rope, rank))


def _kv_heads(section: Section, side: Side, q: int) -> int:
    """Stated groups; one where multi-query is on and no grouping is stated; else one per query head.

    Some multi-query configs write the number of query heads into the KV field; a newer layout flag takes it seriously.
    """
    stated = section.whole(side.kv_heads)
    multi_query = section.flag(a.MULTI_QUERY) and not section.flag(a.GROUPED_AFTER_ALL)
    if multi_query and stated in (None, q):
        return 1
    return stated or q


def _width_per_head(section: Section, side: Side, q: int) -> int:
    width = section.whole(side.width) or 0
    if width % q:
        raise ConfigError(
            f"width {width} does not divide among {q} heads; missing key head_dim (looked for {', '.join(a.HEAD_DIM)})",
            where=section.where,
            missing=("head_dim",),
        )
    return width // q
