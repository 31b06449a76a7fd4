"""Which of a backend's declared conversions a request can call for; the ledger later says what really happened."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from attn_backends.capability import FITS_ANY, TABLE, Row
from attn_backends.strides import request_stride_class

if TYPE_CHECKING:
    from attn_backends.device import Device
    from attn_backends.registry.manifest import Manifest
    from attn_backends.request import Request

_ALIGNMENT: Row = next(row for row in TABLE if row.axis == "causal_alignment")


def _masked(request: Request) -> bool:
    return request.mask != "none" or request.bias or request.dense_lengths or request.block_mask_size is not None


def _shaped(request: Request) -> bool:
    """Whether visibility is more than all, or one diagonal of a square."""
    windowed = request.window_left >= 0 or request.window_right >= 0
    return _masked(request) or windowed or (request.causal and request.seq_q != request.seq_k)


_CALLED_FOR: tuple[tuple[tuple[str, ...], Callable[[Request, Device], bool]], ...] = (
    (("make_contiguous",), lambda r, _: request_stride_class(r) != "contiguous"),
    (("repeat_kv",), lambda r, _: r.num_q_heads != r.num_kv_heads),
    (("pad_head_dim",), lambda r, _: r.head_dim_qk % 8 != 0 or r.head_dim_v != r.head_dim_qk),
    (("flip_alignment",), lambda r, device: _ALIGNMENT.read(r, device) is not FITS_ANY),
    (("expand_mask", "sanitize_kv"), lambda r, _: _shaped(r)),
    (("dequantize_kv",), lambda r, _: r.k_format != "dense" or r.v_format != "dense"),
    (("gather_pages",), lambda r, _: r.page_size is not None),
)
_TESTS = tuple([test for _, test in _CALLED_FOR])


class Called:
    """The conversions that one request may set off: asked about once, however many backends declare them."""

    __slots__ = ("_names",)

    def __init__(self, request: Request, device: Device) -> None:
        self._names = _named(tuple([is_called(request, device) for is_called in _TESTS]))

    def by(self, manifest: Manifest) -> tuple[str, ...]:
        """Those that a backend declares."""
        declared = manifest.converts
        return _both(declared, self._names) if declared and self._names else ()


@cache  # of a few yes and no
def _named(called: tuple[bool, ...]) -> frozenset[str]:
    return frozenset(itertools.chain.from_iterable(itertools.compress([names for names, _ in _CALLED_FOR], called)))


@lru_cache(maxsize=512)  # backends x mixtures of properties: few
def _both(declared: tuple[str, ...], called: frozenset[str]) -> tuple[str, ...]:
    return tuple([name for name in declared if name in called])
