"""`requests`: one kind of layer to the attention calls that it makes, one per phase.

    prefill    the whole context at once, one sequence
    append     a chunk of new tokens behind a prefix in a paged cache, four sequences
    decode     one new token each over a paged cache, thirty-two sequences
    training   prefill with gradients (also of a learned bias and of sinks) and the model's dropout

Kinds that do not generate have prefill and training only. Compressed KV (MLA) is multi-head attention in prefill and
training, and multi-query attention over the latent in append and decode. Light core only; whoever plans may import it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from attn_backends.errors import RequestError
from attn_backends.planning.layer_kind import LayerKind
from attn_backends.quantization import STORED_AS
from attn_backends.request import Request

DEFAULT_CONTEXT = 8192
APPEND_CHUNK = 512
BATCH = {"prefill": 1, "append": 4, "decode": 32, "training": 1}
ALIGNMENT = 16  # bytes; what fresh allocations have at least
_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class PhaseRequest:
    """The call that a kind of layer makes in one phase."""

    phase: str  # prefill | append | decode | training
    request: Request


def requests(
    kind: LayerKind,
    *,
    context: int | None = None,
    batch: int | None = None,
    page_size: int = 16,
    dtype: str | None = None,
    kv_format: str = "dense",
    chunk: int = APPEND_CHUNK,
) -> tuple[PhaseRequest, ...]:
    """The calls of a kind of layer.

    `context`: tokens in all, default 8192 or the model's longest sequence if that is shorter; lengths that the
    structure fixes (images) stay. `batch`: sequences in every phase, else the phase's own default. `dtype`: of q, else
    the checkpoint's. `kv_format`: storage of the cache in append and decode. `chunk`: new tokens of append, at most
    half the context. Raises RequestError for illegal values.
    """
    for name, value in (("context", context), ("batch", batch), ("chunk", chunk)):
        if value is not None and (type(value) is not int or value < 1):
            raise RequestError(name, value, "a whole number >= 1")
    shape = _Shape(kind, context, batch, page_size, dtype or kind.dtype, kv_format)
    found = [PhaseRequest("prefill", shape.whole("prefill"))]
    if kind.cached:
        new = min(chunk, shape.seq_q // 2)
        if new > 1:
            found.append(PhaseRequest("append", shape.cached("append", new)))
        found.append(PhaseRequest("decode", shape.cached("decode", 1)))
    gradients = {"needs_backward": True, "dropout_p": kind.dropout_p}
    gradients |= {"grad_bias": kind.bias, "grad_sinks": kind.sinks}
    found.append(PhaseRequest("training", shape.whole("training", **gradients)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Shape:
    """A kind of layer with the caller's choices."""

    kind: LayerKind
    context: int | None
    batch: int | None
    page_size: int
    dtype: str
    kv_format: str

    @property
    def seq_q(self) -> int:
        """Tokens of the queries' own sequence."""
        return self.kind.tokens or self._context()

    @property
    def seq_k(self) -> int:
        """Keys: the same tokens, or those of the encoder."""
        if self.kind.attn_type != "encoder_decoder":
            return self.seq_q
        keys = self.kind.key_tokens
        return self._context() if keys is None else min(_without_padding(keys), DEFAULT_CONTEXT)

    @property
    def stored(self) -> str | None:
        """The format of a quantised q; new keys and values have it too."""
        return STORED_AS.get(self.dtype)

    def _context(self) -> int:
        if self.context is not None:
            return self.context
        longest = self.kind.max_positions
        return DEFAULT_CONTEXT if longest is None else min(_without_padding(longest), DEFAULT_CONTEXT)

    def _batch(self, phase: str) -> int:
        if self.batch is not None:
            return self.batch
        return max(1, DEFAULT_CONTEXT // self.seq_q) if self.kind.packed else BATCH[phase]

    def whole(self, phase: str, **more: Any) -> Request:
        """Every token attends at once, no cache."""
        kind, batch = self.kind, self._batch(phase)
        if self.stored is not None:
            more |= dict.fromkeys(("k_format", "v_format"), self.stored)
            more |= dict.fromkeys(("k_granularity", "v_granularity"), "per_tensor")
        if kind.packed:
            more |= {"layout": "thd", "varlen": True, "total_q": batch * self.seq_q, "total_k": batch * self.seq_k}
        return Request(
            **self._features(),
            **more,
            phase="prefill",
            batch=batch,
            seq_q=self.seq_q,
            seq_k=self.seq_k,
            num_q_heads=kind.num_q_heads,
            num_kv_heads=kind.num_kv_heads,
            head_dim_qk=kind.head_dim_qk,
            head_dim_v=kind.head_dim_v,
            softmax_scale=kind.softmax_scale,
            alignment=_alignment(kind.head_dim_qk, kind.head_dim_v, self.dtype, "dense"),
        )

    def cached(self, phase: str, seq_q: int) -> Request:
        """`seq_q` new tokens per sequence over a paged cache that holds them already."""
        kind, batch = self.kind, self._batch(phase)
        dim_qk, dim_v = kind.latent or (kind.head_dim_qk, kind.head_dim_v)
        scale = kind.softmax_scale
        if kind.latent and scale is None:
            scale = 1 / math.sqrt(kind.head_dim_qk)
        granularity = "none" if self.kv_format == "dense" else "per_tensor"
        pages = -(-self.seq_k // self.page_size) if type(self.page_size) is int and self.page_size > 0 else 0
        return Request(
            **self._features(),
            phase=phase,
            batch=batch,
            seq_q=seq_q,
            seq_k=self.seq_k,
            num_q_heads=kind.num_q_heads,
            num_kv_heads=1 if kind.latent else kind.num_kv_heads,
            head_dim_qk=dim_qk,
            head_dim_v=dim_v,
            softmax_scale=scale,
            kv_layout="NHD",
            page_size=self.page_size,
            num_pages=batch * pages,
            k_format=self.kv_format,
            v_format=self.kv_format,
            k_granularity=granularity,
            v_granularity=granularity,
            alignment=_alignment(dim_qk, dim_v, self.dtype, self.kv_format),
        )

    def _features(self) -> dict[str, Any]:
        kind = self.kind
        needs_mask = kind.mask_beyond is not None and self.seq_k > kind.mask_beyond
        quantised = {} if self.stored is None else {"q_format": self.stored, "q_granularity": "per_tensor"}
        return {
            **quantised,
            "dtype": self.dtype,
            "attn_type": kind.attn_type,
            "causal": kind.causal,
            "window_left": kind.window_left,
            "window_right": kind.window_right,
            "softcap": kind.softcap,
            "sinks": kind.sinks,
            "alibi": kind.alibi,
            "bias": kind.bias,
            "mask": "bool" if needs_mask else "none",
            "block_mask_size": kind.block_mask_size,
        }


def _without_padding(positions: int) -> int:
    """Position tables of some encoders hold two rows that no token uses: 514 is 512."""
    usable = positions - 2
    return usable if usable >= 64 and usable & (usable - 1) == 0 else positions


def _alignment(dim_qk: int, dim_v: int, dtype: str, kv_format: str) -> int:
    """What rows of q, k and v are multiples of, in bytes, at most what allocations have."""
    item = _BYTES.get(dtype, 1)
    stored = item if kv_format == "dense" else 1
    return math.gcd(dim_qk * item, dim_qk * stored, dim_v * item, dim_v * stored, ALIGNMENT)
