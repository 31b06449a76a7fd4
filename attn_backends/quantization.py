"""How a descale lies over the tensor that it multiplies: which granularity a shape means, and how it broadcasts.

    value[..., s, h, d] = stored[..., s, h, d] * descale          (float32, multiplied on read)

| granularity    | shape of the descale                                                                       |
| -------------- | ------------------------------------------------------------------------------------------ |
| per_tensor     | [] or [1]; a Python float too                                                              |
| per_head       | [H] or [B, H]                                                                              |
| per_channel    | [H, D]                                                                                     |
| per_token_head | [B, S, H] dense (whatever the layout), [T, H] packed, [P, page, H] NHD, [P, H, page] HND   |
| block          | [B, H, ceil(S / scale_block)], counted from the first token of each sequence               |

B batch, S the longest sequence, H heads of the tensor (q: query heads or KV heads), D its width, T packed tokens,
P pages. One shape may mean two granularities; then the caller must name one. Shapes only, no torch: the host resolves
requests with it, backends and `append_kv` read scales with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attn_backends.capability import GRANULARITIES
from attn_backends.errors import RequestError

if TYPE_CHECKING:
    import torch

    from attn_backends.request import Request

Shape = tuple[int, ...]

# The largest and smallest number that each quantised format stores, by the name of its torch dtype.
RANGES: dict[str, tuple[float, float]] = {
    "float8_e4m3fn": (-448.0, 448.0),
    "float8_e5m2": (-57344.0, 57344.0),
    "int8": (-128.0, 127.0),
}

STORED_AS = {"float8_e4m3fn": "scaled-fp8-e4m3", "float8_e5m2": "scaled-fp8-e5m2", "int8": "scaled-int8"}  # of a dtype
AXES = ("dtype", "q_format", "kv_format", "scale_granularity")  # those that a missing descale shows on


def unscaled(request: Request) -> tuple[str, ...]:
    """Which of q, k and v hold quantised numbers and have no descale. No tensors make such a request; people write it."""
    plain_q = request.dtype in STORED_AS and request.q_format == "dense"
    found = ["q"] if plain_q or (request.q_format != "dense" and request.q_granularity == "none") else []
    for name, stored, granularity in (
        ("k", request.k_format, request.k_granularity),
        ("v", request.v_format, request.v_granularity),
    ):
        if granularity == "none" and (plain_q or stored != "dense"):
            found.append(name)
    return tuple(found)


def descale_hint(request: Request) -> str | None:
    """What to pass where descales are missing; None where none is."""
    names = unscaled(request)
    if not names:
        return None
    stored = STORED_AS.get(request.dtype, request.k_format if request.k_format != "dense" else request.v_format)
    has = "has" if len(names) == 1 else "have"
    descales, formats, granularities = (
        ", ".join(f"{name}_{what}" for name in names) for what in ("descale", "format", "granularity")
    )
    return (
        f"{_listed(names)} {has} no descale: pass {descales} (1.0 if nothing was scaled); in a request"
        f" {formats} {stored} and {granularities} per_tensor, or finer"
    )


def _listed(names: tuple[str, ...]) -> str:
    """`q, k and v`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def resolve_granularity(
    descale_shape: Shape | None,
    *,
    field: str,
    heads: int | tuple[int, ...],
    head_dim: int,
    batch: int | None,
    seq: int | None = None,
    total: int | None = None,
    paged: tuple[int, int] | None = None,
    kv_layout: str = "NHD",
    scale_block: int | None = None,
    explicit: str | None = None,
    tie_break: str | None = None,
) -> str:
    """The granularity that a descale of this shape has.

    descale_shape: the tensor's shape; () for a Python float; None for no descale, which is `none`
    field: the argument's name for errors, e.g. "k_descale"; its granularity argument is named after it
    heads: heads of the tensor; for q the pair (Hq, Hkv), since q may be scaled by KV head
    head_dim: the tensor's own width (v's may differ)
    batch: sequences; None where there is no batch, as in `append_kv`
    seq: longest sequence in tokens; None = not known, and any number of blocks is accepted
    total: packed tokens, for packed tensors alone; paged: (pages, page_size), for a paged cache alone
    scale_block: tokens per scale under `block`; None leaves `block` out
    explicit: the granularity that the caller names, or None
    tie_break: what to take where the shape fits it and others; unlike `explicit` it may fit nothing

    Raises RequestError for an unknown name, a shape that fits nothing (or not the name), and an ambiguous shape.
    """
    named = f"{field.split('_', maxsplit=1)[0]}_granularity"
    if explicit is not None and explicit not in GRANULARITIES:
        raise RequestError(named, explicit, "one of " + ", ".join(GRANULARITIES))
    if descale_shape is None:
        if explicit not in (None, "none"):
            raise RequestError(field, None, f"a descale, since {named} = {explicit!r} is given")
        return "none"
    shapes = legal_shapes(
        heads=(heads,) if isinstance(heads, int) else heads,
        head_dim=head_dim, batch=batch, seq=seq, total=total, paged=paged, kv_layout=kv_layout, scale_block=scale_block,
    )  # fmt: skip
    fitting = [name for name, legal in shapes.items() if any(_fits(descale_shape, shape) for shape in legal)]
    if explicit is not None:
        if explicit not in fitting:
            raise RequestError(field, descale_shape, _describe(shapes, (explicit,)), hint=f"{named} = {explicit!r}")
        return explicit
    if tuple(descale_shape) == (1,):
        return "per_tensor"  # with one head it is per_head as well, and the same number
    if not fitting:
        raise RequestError(field, descale_shape, _describe(shapes, tuple(shapes)))
    if tie_break in fitting:
        return tie_break
    if len(fitting) > 1:
        raise RequestError(field, descale_shape, f"{named} to say which is meant: {' or '.join(fitting)}")
    return fitting[0]


def legal_shapes(
    *,
    heads: tuple[int, ...],
    head_dim: int,
    batch: int | None,
    seq: int | None,
    total: int | None,
    paged: tuple[int, int] | None,
    kv_layout: str,
    scale_block: int | None,
) -> dict[str, list[tuple[int | None, ...]]]:
    """Every shape per granularity; None in a shape is any size >= 1. Arguments as in `resolve_granularity`."""
    shapes: dict[str, list[tuple[int | None, ...]]] = {name: [] for name in GRANULARITIES if name != "none"}
    shapes["per_tensor"] = [(), (1,)]
    for h in dict.fromkeys(heads):
        shapes["per_head"].append((h,))
        shapes["per_channel"].append((h, head_dim))
        if batch is not None:
            shapes["per_head"].append((batch, h))
        if paged is not None:
            pages, page_size = paged
            shapes["per_token_head"].append((pages, page_size, h) if kv_layout == "NHD" else (pages, h, page_size))
        elif total is not None:
            shapes["per_token_head"].append((total, h))
        elif batch is not None and seq is not None:
            shapes["per_token_head"].append((batch, seq, h))
        if batch is not None and scale_block is not None:
            shapes["block"].append((batch, h, None if seq is None else -(-seq // scale_block)))
    return shapes


def _fits(got: Shape, legal: tuple[int | None, ...]) -> bool:
    return len(got) == len(legal) and all(want in (None, size) for size, want in zip(got, legal, strict=True))


def _describe(shapes: dict[str, list[tuple[int | None, ...]]], names: tuple[str, ...]) -> str:
    """`per_head [8] or [2, 8]; per_channel [8, 64]`."""
    described = []
    for name in names:
        legal = " or ".join(str(["n" if size is None else size for size in shape]) for shape in shapes.get(name, ()))
        absent = "no shape here (it needs scale_block)" if name == "block" else "no shape here"
        if legal or len(names) == 1:
            described.append(f"{name} {legal or absent}")
    return "; ".join(described)


def broadcast_scale(descale: torch.Tensor, granularity: str) -> torch.Tensor:
    """A descale that does not depend on the token, as a view that multiplies [H, S, D]: [1 | H, 1, 1 | D].

    per_tensor [] or [1], per_head [H], per_channel [H, D]; a [B, H] descale is per_head once its sequence is picked.
    """
    if granularity == "per_tensor":
        return descale.reshape(1, 1, 1)
    if granularity == "per_head":
        return descale.reshape(-1, 1, 1)
    if granularity == "per_channel":
        return descale.unsqueeze(1)
    raise ValueError(f"a {granularity} descale depends on the token")


def token_scale(descale: torch.Tensor) -> torch.Tensor:
    """Scales per token and head [S, H] as a view that multiplies [H, S, D]: [H, S, 1]."""
    return descale.transpose(0, 1).unsqueeze(-1)
