"""How large a model's KV cache is under each storage format, what fits a device, and how long reading it takes.

    bytes per token      sum over layers of Hkv (D of K + Dv of V) elements, and descales where tokens have their own
    bytes per sequence   as many tokens as a layer keeps, in whole pages: the context, or its window
    sequences            (device memory - weights) / bytes per sequence
    step                 (weights + sequences' bytes) / memory bandwidth: no decode step is faster

A compressed cache (MLA) keeps one latent per token, which is both K and V. Light core only; whoever plans may import it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attn_backends.device import Device
from attn_backends.errors import RequestError
from attn_backends.planning.layer_kind import LayerKind

DESCALE_BYTES = 4  # float32
DEFAULT_CONTEXT = 8192
_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A way to store K and V; bytes of an element, None = as the checkpoint's dtype.

    by_token: whether every token and head has its own descale
    """

    name: str
    k_bytes: int | None = None
    v_bytes: int | None = None
    by_token: bool = False


STORES = (
    Store(name="dense"),
    Store(name="8 bits per tensor", k_bytes=1, v_bytes=1),
    Store(name="8 bits per token and head", k_bytes=1, v_bytes=1, by_token=True),
    Store(name="V alone in 8 bits", v_bytes=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSize:
    """What one store takes. Bytes are of all layers; None where the device's facts are not known.

    bytes_per_token: of one more token, as long as no window is full
    bytes_per_sequence: at the context, whole pages
    sequences: how many such sequences fit beside the weights
    step_seconds: lower bound of one decode step of the batch: cache and weights read once
    """

    store: str
    bytes_per_token: int
    bytes_per_sequence: int
    sequences: int | None
    step_seconds: float | None


def kv_sizes(
    kinds: Iterable[LayerKind],
    *,
    context: int | None = None,
    page_size: int = 16,
    batch: int = 1,
    weights: int = 0,
    device: Device | None = None,
) -> tuple[KVSize, ...]:
    """One record per store.

    context: tokens of a sequence, default `usual_context`
    weights: bytes that the device holds besides, and reads in every step

    Raises RequestError for sizes below 1, and for a model that keeps no cache.
    """
    for name, value in (("context", context), ("page_size", page_size), ("batch", batch)):
        if value is not None and (type(value) is not int or value < 1):
            raise RequestError(name, value, "a whole number >= 1")
    cached = [kind for kind in kinds if kind.cached]
    if not cached:
        raise RequestError("config", "no layer with a KV cache", "a model that generates")
    tokens = usual_context(cached) if context is None else context
    return tuple(_sized(store, cached, tokens, page_size, batch, weights, device) for store in STORES)


def usual_context(kinds: Iterable[LayerKind]) -> int:
    """Tokens of a sequence where nobody says how many: 8192, or the model's longest sequence if that is shorter."""
    longest = [kind.max_positions for kind in kinds if kind.cached and kind.max_positions is not None]
    return min([DEFAULT_CONTEXT, *longest])


def bytes_per_token(kind: LayerKind, store: Store) -> int:
    """Of one layer of a kind."""
    element = _BYTES.get(kind.dtype, 2)
    k_bytes, v_bytes = store.k_bytes or element, store.v_bytes or element
    if kind.latent is not None:
        scaled = DESCALE_BYTES if store.by_token else 0
        return kind.latent[0] * max(k_bytes, v_bytes) + scaled
    scaled = 2 * DESCALE_BYTES if store.by_token else 0
    return kind.num_kv_heads * (kind.head_dim_qk * k_bytes + kind.head_dim_v * v_bytes + scaled)


def tokens_kept(kind: LayerKind, context: int, page_size: int) -> int:
    """Cells that one layer of a kind needs for a sequence: whole pages; a window that begins in one keeps all of it."""
    if kind.key_tokens is not None:
        pages = -(-kind.key_tokens // page_size)
    else:
        pages = -(-context // page_size)
        if kind.window_left >= 0:
            pages = min(pages, -(-(kind.window_left + 1) // page_size) + 1)
    return pages * page_size


def _sized(
    store: Store,
    kinds: list[LayerKind],
    context: int,
    page_size: int,
    batch: int,
    weights: int,
    device: Device | None,
) -> KVSize:
    sequence = sum(kind.count * bytes_per_token(kind, store) * tokens_kept(kind, context, page_size) for kind in kinds)
    memory = None if device is None else device.memory_bytes
    bandwidth = None if device is None else device.memory_bandwidth
    return KVSize(
        store=store.name,
        bytes_per_token=sum(kind.count * bytes_per_token(kind, store) for kind in kinds if kind.key_tokens is None),
        bytes_per_sequence=sequence,
        sequences=None if memory is None else max(0, memory - weights) // sequence,
        step_seconds=None if bandwidth is None else (weights + batch * sequence) / bandwidth,
    )
