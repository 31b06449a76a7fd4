"""Tensors and arguments to a `Request`: what the call asks for, without the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from attn_backends.capability import GRAPH_LEVELS
from attn_backends.errors import RequestError
from attn_backends.host.checks import DENSE, check_tensors, check_types, format_of
from attn_backends.host.geometry import Geometry, read_geometry, resolve_lengths
from attn_backends.quantization import resolve_granularity
from attn_backends.request import Request
from attn_backends.strides import stride_class

if TYPE_CHECKING:
    from attn_backends.host.arguments import Arguments

ALIGNMENT_CAP = 16  # bytes; no instruction asks for more, and torch's allocations keep it


def read_request(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Arguments, gradients: tuple[bool, ...] | None = None
) -> tuple[Request, Geometry]:
    """The request that a call makes, and its sizes. Raises RequestError for anything that is no legal call.

    `gradients` (q, k, v, attn_mask, sinks) overrules what the tensors say of themselves.
    """
    check_types(q, k, v, a)
    resolve_lengths(a)
    g = read_geometry(q, k, v, a)
    check_tensors(q, k, v, a, g)
    grads = _gradients(q, k, v, a, gradients)
    fields: dict[str, Any] = {
        "dtype": dtype_name(q.dtype), "out_dtype": _out_dtype(q, a), "layout": a.layout, "phase": _phase(a, g),
        "attn_type": a.attn_type, "batch": g.batch, "seq_q": g.seq_q, "seq_k": g.seq_k, "total_q": g.total_q,
        "total_k": g.total_k, "num_q_heads": g.num_q_heads, "num_kv_heads": g.num_kv_heads,
        "head_dim_qk": g.head_dim_qk, "head_dim_v": g.head_dim_v, "causal": a.causal,
        "causal_alignment": a.causal_alignment, "window_left": a.window_left, "window_right": a.window_right,
        "softmax_scale": a.softmax_scale, "softcap": a.softcap, "sinks": a.sinks is not None,
        "alibi": a.alibi_slopes is not None, "dropout_p": a.dropout_p,
        "block_mask_size": _block_size(a), "kv_layout": a.kv_layout if g.paged else None, "page_size": g.page_size,
        "num_pages": g.num_pages, "dense_lengths": a.seq_lens is not None and not g.paged, "varlen": g.packed,
        "return_lse": a.return_lse, "deterministic": a.deterministic, "batch_invariant": a.batch_invariant,
        "nan_safe": a.nan_safe, "graph": _graph(a),
        **_mask_fields(a, g), **_format_fields(q, k, v, a, g), **grads, **_stride_fields(q, k, v, a, g),
    }  # fmt: skip
    return Request(**fields), g


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.bfloat16` as `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def natural_out_dtype(dtype: torch.dtype) -> torch.dtype:
    """The output's dtype where none is asked for: q's, or bfloat16 for a quantised q."""
    return dtype if dtype in DENSE else torch.bfloat16


def as_dtype(given: torch.dtype | str) -> torch.dtype:
    """A dtype from itself or its name. Raises RequestError."""
    found = given if isinstance(given, torch.dtype) else getattr(torch, str(given).removeprefix("torch."), None)
    if not isinstance(found, torch.dtype) or found not in DENSE:
        raise RequestError("out_dtype", given, "one of " + ", ".join(dtype_name(dtype) for dtype in DENSE))
    return found


def _out_dtype(q: torch.Tensor, a: Arguments) -> str:
    natural = natural_out_dtype(q.dtype)
    wanted = natural if a.out_dtype is None else as_dtype(a.out_dtype)
    return "same" if wanted == natural else dtype_name(wanted)


def _phase(a: Arguments, g: Geometry) -> str:
    if a.phase is not None:
        return a.phase
    if not g.paged:
        return "prefill"
    if g.seq_q <= 1:
        return "decode"
    return "append" if not g.packed or g.total_q == g.batch * g.seq_q else "mixed"


def _graph(a: Arguments) -> str:
    level = "never" if a.graph is None else a.graph
    if level not in GRAPH_LEVELS:
        raise RequestError("graph", a.graph, "none or one of " + ", ".join(GRAPH_LEVELS))
    return level


def _block_size(a: Arguments) -> Any:
    if a.block_mask is None:
        return None
    size = a.block_mask.block_size
    return size[0] if isinstance(size, tuple) and size[0] == size[1] else size


def _mask_fields(a: Arguments, g: Geometry) -> dict[str, Any]:
    mask = a.attn_mask
    if mask is None:
        return {}
    full = (g.batch, g.num_q_heads, g.seq_q, g.seq_k)
    strides = mask.expand(full).stride()
    kind = {"mask": "bool"} if mask.dtype == torch.bool else {"bias": True}
    return {**kind, "mask_strides": tuple(strides)}


def _format_fields(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Arguments, g: Geometry) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        stored = fields[f"{name}_format"] = format_of(name, tensor)
        descale = getattr(a, f"{name}_descale")
        if stored == "dense" and descale is not None:
            raise RequestError(f"{name}_descale", "given", f"none, since {name} is {dtype_name(tensor.dtype)}")
        if stored != "dense" and descale is None:
            allowed = f"a descale, since {name} is {dtype_name(tensor.dtype)}"
            raise RequestError(f"{name}_descale", None, allowed, hint=_what_to_pass((q, k, v), a))
        fields[f"{name}_granularity"] = _granularity(name, descale, a, g)
    if "block" in (fields["q_granularity"], fields["k_granularity"], fields["v_granularity"]):
        fields["scale_block"] = a.scale_block
    return fields


def _what_to_pass(tensors: tuple[torch.Tensor, ...], a: Arguments) -> str:
    """Every descale that the call lacks, and the forms of one."""
    named = zip("qkv", tensors, strict=True)
    missing = [f"{name}_descale" for name, tensor in named if tensor.dtype not in DENSE]
    missing = [name for name in missing if getattr(a, name) is None]
    return (
        f"pass {', '.join(missing)}: a float for the whole tensor (1.0 if nothing was scaled), or float32 of a shape that"
        " attn_backends.quantization lists"
    )


def _granularity(name: str, descale: torch.Tensor | float | None, a: Arguments, g: Geometry) -> str:
    explicit = getattr(a, f"{name}_granularity")
    if isinstance(descale, torch.Tensor):
        if descale.dtype != torch.float32:
            raise RequestError(f"{name}_descale", dtype_name(descale.dtype), "float32")
        shape: tuple[int, ...] | None = tuple(descale.shape)
    elif descale is None:
        shape = None
    elif type(descale) in (int, float):
        shape = ()
    else:
        raise RequestError(f"{name}_descale", type(descale).__name__, "a float, or a float32 tensor")
    query = name == "q"
    paged = (g.num_pages, g.page_size) if g.num_pages is not None and g.page_size is not None and not query else None
    return resolve_granularity(
        shape, field=f"{name}_descale", heads=(g.num_q_heads, g.num_kv_heads) if query else g.num_kv_heads,
        head_dim=g.head_dim_v if name == "v" else g.head_dim_qk, batch=g.batch, seq=g.seq_q if query else g.seq_k,
        total=g.total_q if query else g.total_k, paged=paged, kv_layout=a.kv_layout, scale_block=a.scale_block,
        explicit=explicit,
    )  # fmt: skip


def _gradients(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Arguments, given: tuple[bool, ...] | None
) -> dict[str, bool]:
    if given is None:
        recorded = torch.is_grad_enabled()
        tensors = (q, k, v, a.attn_mask, a.sinks)
        given = tuple(recorded and tensor is not None and tensor.requires_grad for tensor in tensors)
    _check_leaves({"q": q, "k": k, "v": v}, given[:3])
    return {"needs_backward": any(given), "grad_bias": given[3], "grad_sinks": given[4]}


def _check_leaves(tensors: dict[str, torch.Tensor], wanted: tuple[bool, ...]) -> None:
    """Raise RequestError for a gradient that is asked of stored codes: it would not be the codes' own."""
    for (name, tensor), gradient in zip(tensors.items(), wanted, strict=True):
        if gradient and tensor.dtype not in DENSE:
            allowed = "a detached tensor: no gradient flows into the numbers of a quantised format"
            raise RequestError(name, "a quantised tensor that requires a gradient", allowed)


def _stride_fields(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Arguments, g: Geometry) -> dict[str, Any]:
    heads_first = a.layout == "bhsd"
    cache_heads_first = a.kv_layout == "HND" if g.paged else heads_first
    fields: dict[str, Any] = {"alignment": _alignment((q, k, v))}
    for name, tensor, swapped in (("q", q, heads_first), ("k", k, cache_heads_first), ("v", v, cache_heads_first)):
        sizes, strides = list(tensor.shape), list(tensor.stride())
        if swapped:
            sizes[1], sizes[2] = sizes[2], sizes[1]
            strides[1], strides[2] = strides[2], strides[1]
        if stride_class(tuple(sizes), tuple(strides), swapped) != "contiguous":
            fields[f"{name}_strides"] = tuple(strides)
    return fields


def _alignment(tensors: tuple[torch.Tensor, ...]) -> int:
    """Largest power of two that divides every pointer and every outer stride, in bytes, up to ALIGNMENT_CAP."""
    bits = ALIGNMENT_CAP
    for tensor in tensors:
        bits |= tensor.data_ptr()
        for size, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True):
            if size > 1:
                bits |= stride * tensor.element_size()
    return bits & -bits
