"""`merge_states`: one attention state out of two that saw disjoint sets of keys.

A state is (out, lse) of the same queries: out = sum_j exp(s_j - lse) v_j, lse = ln sum_j exp(s_j). Then

    lse   = ln(exp(lse_a) + exp(lse_b))
    out   = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b

A state that saw no key has lse -inf; merging with it is the identity, bit for bit, whatever its `out` holds. Two of them
merge to out 0, lse -inf. Differentiable in all four tensors, and finite there. The weights are those of the two-pass
softmax (Milakov and Gimelshein, arXiv:1805.02867). Needs torch; imported by the public API, never by the light core.
"""

from __future__ import annotations

import torch

from attn_backends.errors import RequestError

_MINUS_INF = float("-inf")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def merge_states(
    out_a: torch.Tensor,
    lse_a: torch.Tensor,
    out_b: torch.Tensor,
    lse_b: torch.Tensor,
    *,
    layout: str = "bshd",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge two states of the same queries; returns new tensors (out, lse).

    out_a, out_b: float [B, Sq, Hq, Dv] (`bshd`), [B, Hq, Sq, Dv] (`bhsd`), or packed [Tq, Hq, Dv] whatever `layout` says
    lse_a, lse_b: float32 (float64 is accepted) [B, Hq, Sq], packed [Hq, Tq]; natural log, -inf = saw no key

    Computed in float32, in float64 if any tensor is; `out` has out_a's dtype, `lse` has lse_a's.
    Raises RequestError for another layout, dtype, shape or device.
    """
    _check_tensors({"out_a": out_a, "lse_a": lse_a, "out_b": out_b, "lse_b": lse_b})
    _check(out_a, lse_a, out_b, lse_b, layout)
    exact = torch.float64 if torch.float64 in (out_a.dtype, out_b.dtype, lse_a.dtype, lse_b.dtype) else torch.float32
    log_a, log_b = lse_a.to(exact), lse_b.to(exact)
    empty_a, empty_b = log_a == _MINUS_INF, log_b == _MINUS_INF
    both = empty_a & empty_b

    # Any shift gives the same lse, so the shift needs no gradient.
    shift = torch.where(both, 0.0, torch.maximum(log_a, log_b)).detach()
    weight_a, weight_b = torch.exp(log_a - shift), torch.exp(log_b - shift)
    total = torch.where(both, 1.0, weight_a + weight_b)
    log = torch.where(both, _MINUS_INF, shift + torch.log(total))
    lse = torch.where(empty_b, log_a, torch.where(empty_a, log_b, log)).to(lse_a.dtype)

    def per_row(values: torch.Tensor) -> torch.Tensor:
        return _beside(values, out_a.dim(), layout)

    value_a = torch.where(per_row(empty_a), 0.0, out_a.to(exact))
    value_b = torch.where(per_row(empty_b), 0.0, out_b.to(exact))
    mixed = per_row(weight_a / total) * value_a + per_row(weight_b / total) * value_b
    out = torch.where(per_row(empty_b), value_a, torch.where(per_row(empty_a), value_b, mixed)).to(out_a.dtype)
    return out, lse


def _beside(values: torch.Tensor, dims: int, layout: str) -> torch.Tensor:
    """[.., Hq, Sq] as a view that multiplies an `out` of that many dims and layout."""
    heads_last = dims == 3 or layout == "bshd"
    return (values.transpose(-1, -2) if heads_last else values).unsqueeze(-1)


def _check_tensors(named: dict[str, torch.Tensor]) -> None:
    for name, given in named.items():
        if not isinstance(given, torch.Tensor):
            raise RequestError(name, type(given).__name__, "a torch.Tensor")
        if given.device != named["out_a"].device:
            raise RequestError(name, f"on {given.device}", f"on {named['out_a'].device}, as out_a")


def _check(out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor, layout: str) -> None:
    if layout not in ("bshd", "bhsd", "thd"):
        raise RequestError("layout", layout, "one of bshd, bhsd, thd")
    ranks = (3,) if layout == "thd" else (3, 4)
    if out_a.dim() not in ranks:
        raise RequestError("out_a", tuple(out_a.shape), f"{' or '.join(map(str, ranks))} dims: {layout} or packed thd")
    if out_b.shape != out_a.shape:
        raise RequestError("out_b", tuple(out_b.shape), f"the shape of out_a, {tuple(out_a.shape)}")
    rows = _lse_shape(tuple(out_a.shape), layout)
    for name, lse in (("lse_a", lse_a), ("lse_b", lse_b)):
        if tuple(lse.shape) != rows:
            raise RequestError(name, tuple(lse.shape), f"{rows} for out of {tuple(out_a.shape)} ({layout})")
        if lse.dtype not in (torch.float32, torch.float64):
            raise RequestError(name, str(lse.dtype), "float32 (or float64)")
    for name, out in (("out_a", out_a), ("out_b", out_b)):
        if out.dtype not in _FLOATS:
            raise RequestError(name, str(out.dtype), ", ".join(str(dtype) for dtype in _FLOATS))


def _lse_shape(out: tuple[int, ...], layout: str) -> tuple[int, ...]:
    if len(out) == 3:
        return out[1], out[0]
    return (out[0], out[1], out[2]) if layout == "bhsd" else (out[0], out[2], out[1])
