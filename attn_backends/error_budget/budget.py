"""What `quantization_error` returns: one record per option, and how to read them together."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionError:
    """One option against float64.

    relative: |out - right| / |right|, both over all sampled rows; 0 where the two are equal, inf where only `right` is 0
    worst_head: the largest `relative` of one query head, and `head` its number
    largest: the largest difference of one element
    kv_bytes: bytes of K and V per token and KV head, scales left out; 16 bits where they are not quantised
    """

    name: str
    summary: str
    relative: float
    worst_head: float
    head: int
    largest: float
    kv_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBudget:
    """Every option, as asked; `rows`: sampled query rows per head, `keys`: of each sequence."""

    options: tuple[OptionError, ...]
    rows: int
    keys: int

    def __getitem__(self, name: str) -> OptionError:
        """The option of this name. Raises KeyError with the names there are."""
        for one in self.options:
            if one.name == name:
                return one
        raise KeyError(f"{name!r}; there are " + ", ".join(repr(one.name) for one in self.options))

    def within(self, relative: float) -> tuple[OptionError, ...]:
        """Options whose error stays within a budget, the fewest bytes first, then the smaller error."""
        fitting = [one for one in self.options if one.relative <= relative]
        return tuple(sorted(fitting, key=lambda one: (one.kv_bytes, one.relative)))

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        return {"schema": "attn.quantization_error/1", **asdict(self)}
