"""The rigs: q, k and v in the logical order [batch, seq, heads, head_dim], in float64, from closed formulas.

Letters: B batch, Sq/Sk lengths, Hq/Hkv heads, D/Dv widths; indices batch, query, key, head, column.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from attn_backends.conformance.field_cases.reading import Case


class Tensors(NamedTuple):
    """q [B, Sq, Hq, D], k [B, Sk, Hkv, D], v [B, Sk, Hkv, Dv]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


class Shape(NamedTuple):
    """Sizes of a case, with the format's defaults."""

    batch: int = 1
    seq_q: int = 1
    seq_k: int = 1
    q_heads: int = 1
    kv_heads: int = 1
    head_dim: int = 64
    head_dim_v: int = 64


def shape_of(case: Case) -> Shape:
    """The case's `shape`; head_dim_v follows head_dim."""
    given = dict(case.get("shape", {}))
    given.setdefault("head_dim_v", given.get("head_dim", 64))
    return Shape(**given)


def logical_tensors(case: Case) -> Tensors:
    """q, k, v of the case's rig, poison included."""
    rig = case.get("rig")
    if rig not in _RIGS:
        raise ValueError(f"case {case.id}: rig {rig!r} is none of {', '.join(_RIGS)}")
    tensors: Tensors = _RIGS[rig](case, shape_of(case))
    return _poisoned(tensors, case.get("poison"))


def _uniform(case: Case, shape: Shape) -> Tensors:
    """All visible keys weigh the same; v counts keys."""
    q = _zeros(shape.batch, shape.seq_q, shape.q_heads, shape.head_dim)
    k = torch.ones_like(_zeros(shape.batch, shape.seq_k, shape.kv_heads, shape.head_dim))
    return Tensors(q, k, _values(case, shape, _count(shape.seq_k)))


def _logits(case: Case, shape: Shape) -> Tensors:
    """One channel carries the score."""
    channel = case.get("channel", 0)
    q = _zeros(shape.batch, shape.seq_q, shape.q_heads, shape.head_dim)
    q[..., channel] = case.get("q0", 1.0)
    k = _zeros(shape.batch, shape.seq_k, shape.kv_heads, shape.head_dim)
    k[..., channel] = _numbers(case.get("logits")).view(1, -1, 1)
    return Tensors(q, k, _values(case, shape, _numbers(case.get("values"))))


def _explicit(case: Case, _shape: Shape) -> Tensors:
    """As written, with zero columns behind."""
    return Tensors(*(_padded(_numbers(case.get(name)), case.get("pad_head_dim_to")) for name in "qkv"))


def _wave(_case: Case, shape: Shape) -> Tensors:
    """Numbers without structure that repeat on every machine."""

    def angle(seq: int, heads: int, width: int, steps: tuple[float, float, float, float]) -> torch.Tensor:
        of_row, of_head, of_column, of_batch = steps
        return (
            of_row * _count(seq).view(1, -1, 1, 1)
            + of_head * _count(heads).view(1, 1, -1, 1)
            + of_column * _count(width).view(1, 1, 1, -1)
            + of_batch * _count(shape.batch).view(-1, 1, 1, 1)
        )

    return Tensors(
        torch.sin(angle(shape.seq_q, shape.q_heads, shape.head_dim, (0.7, 1.3, 0.11, 0.5))),
        torch.sin(angle(shape.seq_k, shape.kv_heads, shape.head_dim, (0.9, 0.6, 0.23, 0.4)) + 1),
        torch.cos(angle(shape.seq_k, shape.kv_heads, shape.head_dim_v, (0.5, 0.8, 0.17, 0.3))),
    )


_RIGS = {"uniform": _uniform, "logits": _logits, "explicit": _explicit, "wave": _wave}


def _values(case: Case, shape: Shape, of_key: torch.Tensor) -> torch.Tensor:
    """v [B, Sk, Hkv, Dv]: a number per key, raised by head and by batch, alike in every column."""
    v: torch.Tensor = (
        of_key.view(1, -1, 1, 1)
        + case.get("v_head_step", 0.0) * _count(shape.kv_heads).view(1, 1, -1, 1)
        + case.get("v_batch_step", 0.0) * _count(shape.batch).view(-1, 1, 1, 1)
    )
    return v.expand(shape.batch, shape.seq_k, shape.kv_heads, shape.head_dim_v).clone()


def _poisoned(tensors: Tensors, poison: dict[str, Any] | None) -> Tensors:
    if not poison:
        return tensors
    named = tensors._asdict()
    for name in poison.get("tensors", ("k", "v")):
        named[name][:, list(poison["keys"])] = poison["value"]
    return Tensors(**named)


def _padded(tensor: torch.Tensor, width: int | None) -> torch.Tensor:
    if width is None:
        return tensor
    return torch.cat([tensor, _zeros(*tensor.shape[:-1], width - tensor.shape[-1])], dim=-1)


def _numbers(raw: Any) -> torch.Tensor:
    return torch.tensor(raw, dtype=torch.float64)


def _count(size: int) -> torch.Tensor:
    return torch.arange(size, dtype=torch.float64)


def _zeros(*sizes: int) -> torch.Tensor:
    return torch.zeros(sizes, dtype=torch.float64)
