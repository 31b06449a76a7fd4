"""Requests as cells of the benchmark, so that what a model or a log asks for can be drawn, checked and timed; no torch."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from attn_backends.bench.cell import DENSE, Cell, Store
from attn_backends.errors import RequestError
from attn_backends.request import Request
from attn_backends.selector.cost.sequences import Sequences, sequences_of, timed_within
from attn_backends.selector.measured.bucket import bucket_of

EVERY_NUMERICS = ("exact", "quantized", "approximate")


class NoCellError(ValueError):
    """A request that the benchmark cannot draw; the text says what of it."""


def cell_of(request: Request, name: str) -> Cell:
    """A cell whose fresh tensors make a request of the same bucket. Raises NoCellError."""
    granularities = {getattr(request, f"{tensor}_granularity") for tensor in "qkv"} - {"none"}
    if len(granularities) > 1:
        raise NoCellError("several granularities of scales")
    stored = {f"{tensor}_format": getattr(request, f"{tensor}_format") for tensor in "qkv"}
    store = DENSE if set(stored.values()) == {"dense"} else Store(
        name="stored", granularity=granularities.pop() if granularities else "per_tensor", **stored
    )  # fmt: skip
    cell = Cell(
        id=name, panel=request.phase, x=request.seq_k, phase=request.phase,
        passes="backward" if request.needs_backward else "forward",
        dtype=request.dtype if stored["q_format"] == "dense" else "bfloat16",
        sequences=_sequences(request), num_q_heads=request.num_q_heads,
        num_kv_heads=request.num_kv_heads, head_dim=request.head_dim_qk, causal=request.causal,
        window_left=request.window_left if request.causal and request.window_left >= 0 else None,
        softcap=request.softcap, page_size=request.page_size, store=store, numerics=EVERY_NUMERICS,
    )  # fmt: skip
    if store.name != "dense" and store.granularity not in ("per_tensor", "per_head", "per_token_head"):
        raise NoCellError(f"scales {store.granularity}")
    _check(request, cell)
    return cell


def _sequences(request: Request) -> Sequences:
    """All of the greatest lengths; a mixed batch as one chunk among decodes, as its totals say."""
    if request.phase == "mixed":
        return sequences_of(request)
    return ((request.batch, request.seq_q, request.seq_k),)


def _check(request: Request, cell: Cell) -> None:
    """Raise NoCellError unless the cell asks for all that the request asks for."""
    try:
        drawn, wanted = bucket_of(cell.request()), bucket_of(request)
    except RequestError as error:
        raise NoCellError(str(error)) from None
    if drawn != wanted:
        missing = sorted(set(wanted.kind.split()) ^ set(drawn.kind.split()))
        raise NoCellError(", ".join(missing) or "its sizes")


def sizes_of(cell: Cell) -> tuple[Cell, ...]:
    """The cells that stand for a bucket with this one at its top: what is measured of it is their geometric mean."""
    return tuple([replace(cell, sequences=one) for one in timed_within(cell.sequences, cell.num_q_heads)])


def cell_to_json(cell: Cell) -> dict[str, Any]:
    """Plain values."""
    return asdict(cell)


def cell_from_json(data: dict[str, Any]) -> Cell:
    """Read `cell_to_json`'s dict."""
    sequences = tuple((count, new, keys) for count, new, keys in data["sequences"])
    lists = {"sequences": sequences, "numerics": tuple(data["numerics"]), "store": Store(**data["store"])}
    return Cell(**{**data, **lists})
