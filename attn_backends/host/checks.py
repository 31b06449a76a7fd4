"""Checks of a call's tensors: dtypes, devices and shapes; and, where no sync is needed or `validate=True`, contents."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from attn_backends.block_mask import BlockMask
from attn_backends.errors import PolicyError, RequestError
from attn_backends.selector.policy import Policy

if TYPE_CHECKING:
    from attn_backends.host.arguments import Arguments
    from attn_backends.host.geometry import Geometry

FORMATS = {
    torch.float8_e4m3fn: "scaled-fp8-e4m3",
    torch.float8_e5m2: "scaled-fp8-e5m2",
    torch.int8: "scaled-int8",
}
DENSE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def format_of(name: str, tensor: torch.Tensor) -> str:
    """Storage format of q, k or v by its dtype. Raises RequestError for a dtype that attention does not know."""
    if tensor.dtype in DENSE:
        return "dense"
    found = FORMATS.get(tensor.dtype)
    if found is None:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in (*DENSE, *FORMATS))
        raise RequestError(name, str(tensor.dtype), f"one of {allowed}")
    return found


_TENSORS = (
    "attn_mask", "sinks", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k", "seq_lens", "block_table", "out",
)  # fmt: skip
_WHOLE = {
    "max_seqlen_q": 0,
    "max_seqlen_k": 0,
    "scale_block": 1,
}  # least value


def check_types(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Arguments) -> None:
    """Every argument is of the kind that it says. Raises RequestError, or PolicyError for a policy that is none."""
    named = {"q": q, "k": k, "v": v, **{name: given for name in _TENSORS if (given := getattr(a, name)) is not None}}
    for name, tensor in named.items():
        _check_plain(name, tensor)
    for name, least in _WHOLE.items():
        given = getattr(a, name)
        if given is not None and (type(given) is not int or given < least):
            raise RequestError(name, given, f"none or a whole number >= {least}")
    if a.dropout_seed is not None:
        check_seed(a.dropout_seed)
    if a.block_mask is not None and not isinstance(a.block_mask, BlockMask):
        raise RequestError("block_mask", type(a.block_mask).__name__, "an attn_backends.BlockMask")
    if not isinstance(a.validate, bool):
        raise RequestError("validate", a.validate, "true or false")
    if a.backend is not None and not isinstance(a.backend, str):
        raise RequestError("backend", a.backend, "none or the name of a backend")
    if a.policy is not None and not isinstance(a.policy, Policy):
        raise PolicyError(f"policy: got {type(a.policy).__name__}; allowed: none or an attn_backends.Policy")


def _check_plain(name: str, tensor: object) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise RequestError(name, type(tensor).__name__, "a torch.Tensor")
    if tensor.layout != torch.strided:
        raise RequestError(name, str(tensor.layout), "a strided tensor")
    if tensor.is_nested:
        raise RequestError(name, "a nested tensor", "a plain tensor", hint="layout='thd' packs several lengths")


def check_seed(seed: object) -> None:
    """Raise RequestError unless the seed is a whole number of 64 bits without sign."""
    if type(seed) is not int or not 0 <= seed < 2**64:
        raise RequestError("dropout_seed", seed, "none or a whole number from 0 to 2**64 - 1")


def check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Arguments, g: Geometry) -> None:
    """Everything about dtypes, devices and shapes that metadata tells. Raises RequestError."""
    _check_dense_dtypes(q, k, v)
    _check_lengths(a)
    _check_devices(q, k, v, a)
    _check_per_head("sinks", a.sinks, [(g.num_q_heads,)])
    _check_per_head("alibi_slopes", a.alibi_slopes, [(g.num_q_heads,), (g.batch, g.num_q_heads)])
    _check_mask(q, a, g)
    _check_gradients(a)
    if a.block_mask is not None:
        a.block_mask.check(batch=g.batch, num_q_heads=g.num_q_heads, seq_q=g.seq_q, seq_k=g.seq_k)


def _check_dense_dtypes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    wanted = q.dtype if format_of("q", q) == "dense" else torch.bfloat16
    for name, tensor in (("k", k), ("v", v)):
        if format_of(name, tensor) == "dense" and tensor.dtype != wanted:
            raise RequestError(name, str(tensor.dtype), f"{wanted}, as q, or a quantised dtype with its descale")


def _check_lengths(a: Arguments) -> None:
    for name in ("cu_seqlens_q", "cu_seqlens_k", "seq_lens", "block_table"):
        tensor = getattr(a, name)
        if tensor is not None and tensor.dtype != torch.int32:
            raise RequestError(name, str(tensor.dtype), "torch.int32")


def _check_devices(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Arguments) -> None:
    named = {"k": k, "v": v}
    for name in ("attn_mask", "sinks", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k", "seq_lens", "block_table", "out",
                 "q_descale", "k_descale", "v_descale"):  # fmt: skip
        given = getattr(a, name)
        number = name.endswith("descale") and isinstance(given, torch.Tensor) and given.numel() == 1
        if isinstance(given, torch.Tensor) and not (number and given.device.type == "cpu"):
            named[name] = given
    for name, tensor in named.items():
        if tensor.device != q.device:
            raise RequestError(name, f"on {tensor.device}", f"on {q.device}, as q")


def _check_per_head(name: str, tensor: torch.Tensor | None, shapes: list[tuple[int, ...]]) -> None:
    if tensor is None:
        return
    legal = " or ".join(str(list(shape)) for shape in shapes)
    if tensor.dtype != torch.float32 or tuple(tensor.shape) not in shapes:
        got = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        raise RequestError(name, got, f"float32 {legal}")


def _check_gradients(a: Arguments) -> None:
    """No gradient is lost silently: what asks for one and gets none is refused."""
    if not torch.is_grad_enabled():
        return
    for name, allowed in NOT_DIFFERENTIABLE.items():
        given = getattr(a, name)
        if isinstance(given, torch.Tensor) and given.requires_grad:
            raise RequestError(name, "a tensor that requires a gradient", allowed)


NOT_DIFFERENTIABLE = {
    "alibi_slopes": "a detached tensor: slopes are not differentiable; as a float attn_mask they are",
    "q_descale": "a detached tensor: descales are not differentiable",
    "k_descale": "a detached tensor: descales are not differentiable",
    "v_descale": "a detached tensor: descales are not differentiable",
    "out": "a tensor that requires no gradient, since it is overwritten",
}


def _check_mask(q: torch.Tensor, a: Arguments, g: Geometry) -> None:
    mask = a.attn_mask
    if mask is None:
        return
    query_dtype = q.dtype if q.dtype in DENSE else torch.bfloat16
    if mask.dtype not in (torch.bool, torch.float32, query_dtype):
        raise RequestError("attn_mask", str(mask.dtype), f"bool, float32 or {query_dtype}")
    full = (g.batch, g.num_q_heads, g.seq_q, g.seq_k)
    fits = 2 <= mask.dim() <= 4 and all(
        got in (1, want) for got, want in zip(reversed(mask.shape), reversed(full), strict=False)
    )
    if not fits:
        raise RequestError("attn_mask", f"shape {list(mask.shape)}", f"2 to 4 dims that broadcast to {list(full)}")


def check_contents(a: Arguments, g: Geometry) -> None:
    """Lengths and tables, value by value. Costs a sync on a GPU; free on a CPU. Raises RequestError."""
    if a.cu_seqlens_q is not None:
        _check_cumulative("cu_seqlens_q", a.cu_seqlens_q, g.total_q, g.seq_q, "max_seqlen_q")
    if a.cu_seqlens_k is not None:
        _check_cumulative("cu_seqlens_k", a.cu_seqlens_k, g.total_k, g.seq_k, "max_seqlen_k")
    if a.seq_lens is not None:
        _check_seq_lens(a, g)


def _check_cumulative(name: str, tensor: torch.Tensor, total: int | None, longest: int, bound: str) -> None:
    values = tensor.tolist()
    if values[0] != 0:
        raise RequestError(name, values[0], "a first entry of 0")
    steps = [after - before for before, after in itertools.pairwise(values)]
    if any(step < 0 for step in steps):
        at = next(index for index, step in enumerate(steps) if step < 0)
        raise RequestError(name, values[at : at + 2], f"no decrease; entry {at + 1} is below entry {at}")
    if total is not None and values[-1] > total:
        raise RequestError(name, values[-1], f"a last entry of at most {total}, the tokens there are")
    if steps and max(steps) > longest:
        raise RequestError(bound, longest, f"at least {max(steps)}, the longest sequence of {name}")


def _check_seq_lens(a: Arguments, g: Geometry) -> None:
    lengths = a.seq_lens.tolist() if a.seq_lens is not None else []
    capacity = g.seq_k
    for index, length in enumerate(lengths):
        if not 0 <= length <= capacity:
            what = "what the block_table holds" if g.paged else "the keys there are"
            raise RequestError("seq_lens", length, f"from 0 to {capacity}, {what} (sequence {index})")
    if a.block_table is None or g.page_size is None or g.num_pages is None:
        return
    for index, (row, length) in enumerate(zip(a.block_table.tolist(), lengths, strict=True)):
        for position in range(-(-length // g.page_size)):
            if not 0 <= row[position] < g.num_pages:
                allowed = f"a page from 0 to {g.num_pages - 1} (sequence {index}, entry {position}, within its length)"
                raise RequestError("block_table", row[position], allowed)
