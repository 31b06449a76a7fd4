"""`Tiles`: how a tiled kernel cuts its work, as a manifest says it for the cost model. Read by the registry alone.

A manifest lists rows, as a kernel's own table of pipelines does; the first one that serves a call holds. A call that none
serves, and every backward pass, counts with the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attn_backends.request import Request

MOST = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tiles:
    """Queries and keys of a tile, and how tiles share a multiprocessor. Alike rows are one object.

    head_dim, causal, longest: serves heads of at most this width, this mask, at most so many queries a sequence
    resident: tiles that a multiprocessor works on at the same time
    balanced: tiles are handed out as multiprocessors get free, the long ones first
    split: keys are split over multiprocessors where the tiles are too few for them
    """

    head_dim: int | None = None
    causal: bool | None = None
    longest: int | None = None
    rows: int = 128
    keys: int = 128
    resident: int = 1
    balanced: bool = False
    split: bool = False

    def serves(self, request: Request, seq_q: int) -> bool:
        """Whether the row holds for a call with sequences of so many queries."""
        return (
            (self.head_dim is None or request.head_dim_qk <= self.head_dim)
            and (self.causal is None or request.causal == self.causal)
            and (self.longest is None or seq_q <= self.longest)
        )


DEFAULT = Tiles()
_FLAGS = ("causal", "balanced", "split")
KEYS = {field.name: "boolean" if field.name in _FLAGS else "integer" for field in fields(Tiles)}


@cache
def _made(**given: Any) -> Tiles:
    return Tiles(**given)


def read_tiles(value: Any) -> Tiles:
    """One row of a manifest's `tiles`. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not a table")
    for key, one in value.items():
        if key not in KEYS:
            raise ValueError(f"{key} is not one of {', '.join(KEYS)}")
        if key in _FLAGS and type(one) is not bool:
            raise ValueError(f"{key} = {one!r} is not true or false")
        if key not in _FLAGS and not (type(one) is int and 0 < one <= MOST):
            raise ValueError(f"{key} = {one!r} is no whole number from 1 to {MOST}")
    return _made(**value)
