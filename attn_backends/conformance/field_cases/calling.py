"""One call of `attention` as a case describes it, and its answer back in the logical order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import attn_backends
from attn_backends.conformance.field_cases.memory import in_memory
from attn_backends.conformance.field_cases.reading import Case
from attn_backends.conformance.field_cases.rigs import Tensors, logical_tensors
from attn_backends.conformance.field_cases.storage import stored_tensors

_INT32 = ("cu_seqlens_q", "cu_seqlens_k", "seq_lens", "block_table")
_FLOAT32 = ("sinks", "alibi_slopes", "q_descale", "k_descale", "v_descale")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where and how a case runs: dtype and device of its tensors, and the backend that is forced, if any."""

    dtype: str
    device: str = "cpu"
    backend: str | None = None

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """out [B, Sq, Hq, Dv] or packed [Tq, Hq, Dv]; lse likewise without Dv, heads last; gradients as their tensors."""

    out: torch.Tensor
    lse: torch.Tensor | None = None
    grads: Tensors | None = None
    sequences: tuple[int, ...] | None = None  # first row of each packed sequence, and the end

    def entry(self, tensor: torch.Tensor, batch: int | None) -> torch.Tensor:
        """One batch entry of out or lse: rows first. None: everything, as it is."""
        if batch is None:
            return tensor
        if self.sequences is None:
            return tensor[batch]
        return tensor[self.sequences[batch] : self.sequences[batch + 1]]


def call_attention(case: Case, place: Place, *, return_lse: bool) -> Answer:
    """Build the case's tensors, call `attention` and read the answer. Errors pass through."""
    tensors, given = prepared(case, place)
    if return_lse:
        given.setdefault("return_lse", True)
    if case.get("backward"):
        tensors = Tensors(*(tensor.detach().requires_grad_() for tensor in tensors))
    result = attn_backends.attention(*tensors, **given)
    out, lse = result if isinstance(result, tuple) else (result, None)
    grads = _gradients(out, tensors) if case.get("backward") else None
    return _answer(case, out, lse, grads)


def prepared(case: Case, place: Place) -> tuple[Tensors, dict[str, Any]]:
    """q, k, v as they are passed, and the other arguments by name."""
    tensors = in_memory(case, stored_tensors(case, logical_tensors(case), place.torch_dtype))
    if place.device != "cpu":
        tensors = Tensors(*(_moved(tensor, place.device) for tensor in tensors))
    return tensors, arguments(case, place)


def arguments(case: Case, place: Place) -> dict[str, Any]:
    """The case's args as `attention` takes them; lists become tensors."""
    given = {name: _argument(case, place, name, value) for name, value in case.get("args", {}).items()}
    if case.get("rig") == "logits" and not case.get("default_scale"):
        given.setdefault("softmax_scale", 1.0)
    for name in case.get("drop_args", ()):
        given.pop(name, None)
    if place.backend is not None:
        given["backend"] = place.backend
    return given


def _argument(case: Case, place: Place, name: str, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    if name in _INT32:
        return torch.tensor(value, dtype=torch.int32, device=place.device)
    if name in _FLOAT32:
        return torch.tensor(value, dtype=torch.float32, device=place.device)
    if name != "attn_mask":
        raise ValueError(f"case {case.id}: args.{name} is a list, and no tensor of that name is known")
    return _mask(case, place, value)


def _mask(case: Case, place: Place, value: list[Any]) -> torch.Tensor:
    if all(isinstance(leaf, bool) for leaf in _leaves(value)):
        return torch.tensor(value, dtype=torch.bool, device=place.device)
    numbers = torch.tensor(value, dtype=torch.float64)
    dtype = place.torch_dtype
    if case.get("mask_finfo_min"):
        numbers = numbers.masked_fill(numbers == -1.0, torch.finfo(dtype).min)
    return numbers.to(dtype).to(place.device)


def _leaves(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, list) else [value]


def _moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """The tensor on another device, strides kept."""
    span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() == 0:
        return tensor.to(device)
    return tensor.as_strided((span,), (1,)).to(device).as_strided(tensor.shape, tensor.stride())


def _gradients(out: torch.Tensor, tensors: Tensors) -> Tensors:
    out.sum().backward()
    return Tensors(*(_gradient(tensor) for tensor in tensors))


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.grad is None:
        raise ValueError("the backward gave no gradient")
    return tensor.grad


def _answer(case: Case, out: torch.Tensor, lse: torch.Tensor | None, grads: Tensors | None) -> Answer:
    args = case.get("args", {})
    layout = args.get("layout", "bshd")
    if lse is not None:
        lse = lse.transpose(-1, -2)
    if layout == "bhsd":
        out = out.transpose(1, 2)
        grads = None if grads is None else Tensors(*(grad.transpose(1, 2) for grad in grads))
    sequences = tuple(args["cu_seqlens_q"]) if layout == "thd" and "cu_seqlens_q" in args else None
    return Answer(out=out.detach(), lse=None if lse is None else lse.detach(), grads=grads, sequences=sequences)
