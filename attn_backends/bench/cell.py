"""`Cell`: one shape of a suite, on which backends are compared. Plain values; the tensors are made elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from attn_backends.request import Request
from attn_backends.selector.cost.sequences import Sequences

ALIGNMENT = 16  # bytes; what fresh allocations have
PASSES = ("forward", "backward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """How q, K and V are stored: `dense`, or a scaled format with one granularity for all that are scaled."""

    name: str = "dense"
    q_format: str = "dense"
    k_format: str = "dense"
    v_format: str = "dense"
    granularity: str = "per_tensor"

    def granularity_of(self, tensor: str) -> str:
        """`none` for a dense tensor."""
        return "none" if getattr(self, f"{tensor}_format") == "dense" else self.granularity


STORED_DTYPES = {"scaled-fp8-e4m3": "float8_e4m3fn", "scaled-fp8-e5m2": "float8_e5m2", "scaled-int8": "int8"}
DENSE = Store()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One shape. `sequences` are (how many, new tokens, keys), in the order in which they lie in the batch."""

    id: str  # unique in its suite: "d128 s4096 causal"
    panel: str  # the plot that it belongs to
    x: int | str  # where it stands on that plot: a length, or the name of a shape
    phase: str
    passes: str = "forward"
    dtype: str = "bfloat16"
    sequences: Sequences
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    causal: bool
    window_left: int | None = None  # tokens besides oneself, in a causal cell
    softcap: float | None = None
    page_size: int | None = None
    store: Store = field(default=DENSE)
    numerics: tuple[str, ...] = ("exact",)  # what a backend may do to its inputs

    @property
    def batch(self) -> int:
        """Sequences."""
        return sum(count for count, _, _ in self.sequences)

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """(new tokens, keys) of every sequence."""
        return [(seq_q, seq_k) for count, seq_q, seq_k in self.sequences for _ in range(count)]

    @property
    def packed(self) -> bool:
        """Whether q is packed, because its sequences have different lengths."""
        return len({seq_q for _, seq_q, _ in self.sequences}) > 1

    @property
    def scalars(self) -> dict[str, Any]:
        """What of the score's formula is not at its default, as `attention()` and `Request` call it."""
        given = {"window_left": self.window_left, "softcap": self.softcap}
        return {"causal": self.causal, **{name: value for name, value in given.items() if value is not None}}

    @property
    def num_pages(self) -> int | None:
        """Pages that the sequences fill; None without a paged cache."""
        if self.page_size is None:
            return None
        return sum(count * -(-seq_k // self.page_size) for count, _, seq_k in self.sequences)

    def request(self) -> Request:
        """The request that freshly allocated tensors of this cell make."""
        store = self.store
        fields: dict[str, Any] = {f"{name}_format": getattr(store, f"{name}_format") for name in "qkv"}
        fields |= {f"{name}_granularity": store.granularity_of(name) for name in "qkv"}
        if self.packed:
            fields |= {"layout": "thd", "varlen": True, "total_q": sum(count * new for count, new, _ in self.sequences)}
        if self.page_size is not None:
            fields |= {"page_size": self.page_size, "kv_layout": "NHD", "num_pages": self.num_pages}
        return Request(
            dtype=STORED_DTYPES.get(store.q_format, self.dtype),
            phase=self.phase,
            batch=self.batch,
            seq_q=max(new for _, new, _ in self.sequences),
            seq_k=max(keys for _, _, keys in self.sequences),
            num_q_heads=self.num_q_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim_qk=self.head_dim,
            head_dim_v=self.head_dim,
            **self.scalars,
            needs_backward=self.passes == "backward",
            alignment=ALIGNMENT,
            **fields,
        )
