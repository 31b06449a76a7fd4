"""`Bucket`: the calls that share a measured time.

A bucket is a kind (everything a call asks for besides its sizes) and a place (its sizes, as whole powers of two):

    parallel   sequences x KV heads, which are all alike to a kernel
    group      query heads per KV head
    lengths    new tokens and keys; one number where they are equal
    window     tokens to the left and right, where it is finite

Every field of the table belongs to the kind unless it is named here, so that a new property never shares an old time.
"""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from attn_backends.fields import MISSING
from attn_backends.request_fields import FIELDS

if TYPE_CHECKING:
    from attn_backends.request import Request

SIZES = (
    "batch", "seq_q", "seq_k", "total_q", "total_k", "num_q_heads", "num_kv_heads", "num_pages", "window_left",
    "window_right",
)  # fmt: skip
# What moves no data and costs no step of a kernel.
INDIFFERENT = ("attn_type", "softmax_scale", "alignment", "return_lse", "nan_safe", "graph", "compile")
PRESENCE = ("softcap", "dropout_p", "q_strides", "k_strides", "v_strides", "mask_strides")  # whether, not how much

_EXACT = {
    field.name: None if field.default is MISSING else field.default
    for field in FIELDS
    if field.name not in (*SIZES, *INDIFFERENT, *PRESENCE)
}
_DEFAULTS = tuple(_EXACT.values())
_exact, _present = attrgetter(*_EXACT), attrgetter(*PRESENCE)  # every decision made anew comes through here


class Bucket(NamedTuple):
    """`kind` is a text; places of one kind have equally many coordinates."""

    kind: str
    place: tuple[int, ...]


def bucket_of(request: Request) -> Bucket:
    """The bucket of a request; canonical requests of one cache key are of one bucket."""
    found = zip(_EXACT, _exact(request), _DEFAULTS, strict=True)
    words = [f"{name}={value}" for name, value, default in found if value != default]
    words += [name for name, value in zip(PRESENCE, _present(request), strict=True) if value]
    windows = [name for name in ("window_left", "window_right") if getattr(request, name) >= 0]
    square = request.seq_q == request.seq_k
    if square:
        words.append("square")
    place = [
        _power(request.batch) + round(math.log2(request.num_kv_heads)),
        round(math.log2(request.num_q_heads // request.num_kv_heads)),
        *([_power(request.seq_k)] if square else [_power(request.seq_q), _power(request.seq_k)]),
        *[_power(getattr(request, name) + 1) for name in windows],
    ]
    return Bucket(" ".join([*words, *windows]), tuple(place))


def _power(size: int) -> int:
    """The smallest power of two that is not below, as its exponent; nothing counts as one."""
    return max(0, size - 1).bit_length()
