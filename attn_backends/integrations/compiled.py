"""The host's one torch custom op, for `torch.compile`: opaque to the compiler, it decides at run time exactly as eager.

`attn_backends::attention` returns (out, lse, ticket); lse has no elements unless asked for. Its backward is a second op
that runs the eager path again with gradients on: what a backend keeps between forward and backward cannot cross a
graph. What was decided can: the ticket is a number under which the forward left its bound kernel.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from attn_backends.block_mask import BlockMask
from attn_backends.errors import LoadError, RequestError
from attn_backends.host.arguments import Arguments
from attn_backends.host.checks import NOT_DIFFERENTIABLE
from attn_backends.host.dispatch import find_bound, remember
from attn_backends.host.reading import as_dtype, natural_out_dtype
from attn_backends.selector.policy import Policy

if TYPE_CHECKING:
    from attn_backends.host.launch import Bound

Tensor = torch.Tensor
_SCALARS = (
    "layout", "causal", "causal_alignment", "window_left", "window_right", "softmax_scale", "softcap", "max_seqlen_q",
    "max_seqlen_k", "kv_layout", "dropout_p", "return_lse", "deterministic", "batch_invariant", "nan_safe", "backend",
    "phase", "attn_type", "out_dtype", "graph", "q_granularity", "k_granularity", "v_granularity", "scale_block",
)  # fmt: skip
_DIFFERENTIABLE = ("q", "k", "v", "attn_mask", "sinks")


def compiled_attention(q: Tensor, k: Tensor, v: Tensor, a: Arguments) -> Any:
    """Put the call into the graph as one op. Traced by the compiler: plain attribute reads and tensor ops only."""
    refused = _refused(a)
    if refused is not None:  # raised when the graph runs: a compiler would wrap what is raised while it traces
        a = Arguments()
    grads = torch.is_grad_enabled()
    wanted = [grads and tensor is not None and tensor.requires_grad for tensor in (q, k, v, a.attn_mask, a.sinks)]
    seed = None
    if a.dropout_p > 0:
        seed = torch.randint(0, 2**62, (), device="cpu") if a.dropout_seed is None else _seed(a.dropout_seed)
    block = a.block_mask
    sizes = [] if block is None else [block.block_q, block.block_k]
    out_dtype = None if a.out_dtype is None else str(a.out_dtype).removeprefix("torch.")
    out, lse, _ticket = attention_op(
        q, k, v, a.attn_mask, a.sinks, a.alibi_slopes, None if block is None else block.blocks,
        None if block is None else block.mask, a.cu_seqlens_q, a.cu_seqlens_k, a.seq_lens, a.block_table,
        _as_tensor(a.q_descale, q), _as_tensor(a.k_descale, q), _as_tensor(a.v_descale, q), seed, wanted, sizes,
        a.layout, a.causal, a.causal_alignment, min(a.window_left, _FAR), min(a.window_right, _FAR),
        a.softmax_scale, a.softcap, a.max_seqlen_q, a.max_seqlen_k, a.kv_layout, a.dropout_p, a.return_lse, a.deterministic, a.batch_invariant,
        a.nan_safe, a.backend, a.phase, a.attn_type, out_dtype, a.graph, a.q_granularity, a.k_granularity,
        a.v_granularity, a.scale_block, None if a.policy is None else a.policy.text, refused,
    )  # fmt: skip
    if a.out is not None:
        out = a.out.copy_(out)
    return (out, lse) if a.return_lse else out


def _refused(a: Arguments) -> str | None:
    """What no schema can carry or no trace can raise: lines of field, value, allowed. Traced: types, not values."""
    for names, kinds, allowed in _KINDS:
        for name in names:
            given = getattr(a, name)
            if type(given) not in kinds:
                return "\n".join([name, str(given), allowed])
    if a.dropout_seed is not None and not 0 <= a.dropout_seed < 2**64:
        return "dropout_seed\na number out of range\nnone or a whole number from 0 to 2**64 - 1"  # it may be symbolic
    for name in NOT_DIFFERENTIABLE:
        given = getattr(a, name)
        if torch.is_grad_enabled() and isinstance(given, Tensor) and given.requires_grad:
            return "\n".join([name, "a tensor that requires a gradient", NOT_DIFFERENTIABLE[name]])
    return None


_NONE = type(None)
_KINDS: tuple[tuple[tuple[str, ...], tuple[type, ...], str], ...] = (
    (("causal", "return_lse", "deterministic", "batch_invariant", "nan_safe", "validate"), (bool,), "true or false"),
    (("window_left", "window_right"), (int,), "a whole number"),
    (("dropout_seed", "max_seqlen_q", "max_seqlen_k", "scale_block"), (int, _NONE), "none or a whole number"),
    (("softmax_scale", "softcap"), (float, int, _NONE), "none or a number"),
    (("dropout_p",), (float, int), "a number"),
    (("layout", "causal_alignment", "kv_layout", "attn_type"), (str,), "a word"),
    (("backend", "phase", "graph", "q_granularity", "k_granularity", "v_granularity"), (str, _NONE), "none or a word"),
)
_FAR = 2**62  # a window that hides nothing, and fits the op's schema


def _seed(seed: int) -> Tensor:
    """64 bits without sign in an int64."""
    return torch.tensor(seed if seed < 2**63 else seed - 2**64, dtype=torch.int64, device="cpu")


def _as_tensor(descale: Tensor | float | None, like: Tensor) -> Tensor | None:
    if descale is None or isinstance(descale, Tensor):
        return descale
    return torch.full((), float(descale), dtype=torch.float32, device=like.device)


@torch.library.custom_op("attn_backends::attention", mutates_args=())
def attention_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None,
    sinks: Tensor | None,
    alibi_slopes: Tensor | None,
    blocks: Tensor | None,
    blocks_inner: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    seq_lens: Tensor | None,
    block_table: Tensor | None,
    q_descale: Tensor | None,
    k_descale: Tensor | None,
    v_descale: Tensor | None,
    seed: Tensor | None,
    wanted: list[bool],
    block_size: list[int],
    layout: str,
    causal: bool,
    causal_alignment: str,
    window_left: int,
    window_right: int,
    softmax_scale: float | None,
    softcap: float | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    kv_layout: str,
    dropout_p: float,
    return_lse: bool,
    deterministic: bool,
    batch_invariant: bool,
    nan_safe: bool,
    backend: str | None,
    phase: str | None,
    attn_type: str,
    out_dtype: str | None,
    graph: str | None,
    q_granularity: str | None,
    k_granularity: str | None,
    v_granularity: str | None,
    scale_block: int | None,
    policy: str | None,
    refused: str | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one call; `wanted` says which of q, k, v, attn_mask, sinks will get a gradient."""
    if refused is not None:
        raise RequestError(*refused.split("\n"))
    a = _arguments(locals())
    with torch.no_grad():
        bound = find_bound(q, k, v, a, tuple(wanted))
        result = bound.forward(q, k, v, a)
    out, lse = result if isinstance(result, tuple) else (result, q.new_empty(0, dtype=torch.float32))
    if not any(wanted):
        return out, lse, q.new_empty(0, dtype=torch.int64)
    if bound.number not in _left:
        remember(_left, bound.number, bound)
    return out, lse, torch.tensor(bound.number, dtype=torch.int64, device="cpu")


_left: dict[int, Bound] = {}  # what forwards ran, by ticket, for their backwards


def _bound_of(ticket: Tensor) -> Bound:
    """The kernel that the forward ran. Raises LoadError where it is gone."""
    bound = _left.get(int(ticket))
    if bound is None:
        raise LoadError("the forward of this backward ran in another process, or too many calls ago: run it again")
    return bound


def _arguments(given: dict[str, Any]) -> Arguments:
    """The op's flat arguments as `Arguments`."""
    a = Arguments(**{name: given[name] for name in _SCALARS})
    for name in ("attn_mask", "sinks", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k", "seq_lens", "block_table",
                 "q_descale", "k_descale", "v_descale"):  # fmt: skip
        setattr(a, name, given[name])
    if given["blocks"] is not None:
        size = given["block_size"]
        a.block_mask = BlockMask(given["blocks"], (size[0], size[1]), given["blocks_inner"])
    if given["seed"] is not None:
        a.dropout_seed = int(given["seed"]) % 2**64
    if given["policy"] is not None:
        a.policy = Policy.from_dict(json.loads(given["policy"]))
    return a


@attention_op.register_fake
def _fake(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    given = dict(zip(_NAMES, args, strict=True))
    q, v = given["q"], given["v"]
    dtype = natural_out_dtype(q.dtype) if given["out_dtype"] is None else as_dtype(given["out_dtype"])
    out = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=dtype)
    some = any(given["wanted"])
    ticket = torch.empty((), dtype=torch.int64, device="cpu") if some else q.new_empty(0, dtype=torch.int64)
    return out, q.new_empty(_lse_shape(q, given), dtype=torch.float32), ticket


def _lse_shape(q: Tensor, given: dict[str, Any]) -> tuple[Any, ...]:
    if not given["return_lse"]:
        return (0,)
    if given["layout"] == "thd":
        return (q.shape[1], q.shape[0])
    return (q.shape[0], q.shape[2], q.shape[1]) if given["layout"] == "bshd" else tuple(q.shape[:3])


_NAMES = tuple(argument.name for argument in attention_op._opoverload._schema.arguments)  # noqa: SLF001  # no public door


@torch.library.custom_op("attn_backends::attention_backward", mutates_args=())
def attention_backward_op(
    d_out: Tensor,
    d_lse: Tensor | None,
    ticket: Tensor,
    tensors: list[Tensor],
    present: list[bool],
    scalars: str,
) -> list[Tensor]:
    """Gradients of q, k, v, attn_mask, sinks by the kernel that the forward ran; those not wanted have no elements."""
    it = iter(tensors)
    names = _tensor_names()
    given: dict[str, Any] = {name: next(it) if there else None for name, there in zip(names, present, strict=True)}
    given.update(json.loads(scalars))
    wanted = given["wanted"]
    leaves = {
        name: given[name].detach().requires_grad_(want)
        for name, want in zip(_DIFFERENTIABLE, wanted, strict=True)
        if given[name] is not None
    }
    given.update(leaves)
    with torch.enable_grad(), _autograd_inside_an_op():
        result = _bound_of(ticket)(given["q"], given["k"], given["v"], _arguments(given))
        out, lse = result if isinstance(result, tuple) else (result, None)
    outputs, d_outputs = [out], [d_out]
    if lse is not None and d_lse is not None and d_lse.numel():
        outputs, d_outputs = [out, lse], [d_out, d_lse]
    inputs = [leaves[name] for name, want in zip(_DIFFERENTIABLE, wanted, strict=True) if want]
    with _autograd_inside_an_op():
        found = iter(torch.autograd.grad(outputs, inputs, d_outputs))
    return [next(found).contiguous() if want else d_out.new_empty(0) for want in wanted]


def _autograd_inside_an_op() -> Any:
    """Lets a backend that differentiates torch operators do so here: an op's body has autograd dispatched away."""
    return torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False)  # noqa: SLF001  # no public door


@attention_backward_op.register_fake
def _fake_backward(
    d_out: Tensor,
    d_lse: Tensor | None,  # noqa: ARG001  # the op's own signature
    ticket: Tensor,  # noqa: ARG001
    tensors: list[Tensor],
    present: list[bool],
    scalars: str,
) -> list[Tensor]:
    it = iter(tensors)
    given = {name: next(it) if there else None for name, there in zip(_tensor_names(), present, strict=True)}
    wanted = json.loads(scalars)["wanted"]
    return [
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        if want and (tensor := given[name]) is not None
        else d_out.new_empty(0)
        for name, want in zip(_DIFFERENTIABLE, wanted, strict=True)
    ]


def _tensor_names() -> tuple[str, ...]:
    return _NAMES[: _NAMES.index("wanted")]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    names = _tensor_names()
    given = dict(zip(_NAMES, inputs, strict=True))
    ctx.present = [given[name] is not None for name in names]
    ctx.scalars = json.dumps({name: given[name] for name in _NAMES if name not in names})
    ctx.save_for_backward(output[2], *[given[name] for name in names if given[name] is not None])
    ctx.returned_lse = given["return_lse"]
    ctx.wanted = given["wanted"]


def _backward(ctx: Any, d_out: Tensor, d_lse: Tensor | None, _d_ticket: None) -> tuple[Any, ...]:
    passed = d_lse if ctx.returned_lse else None
    ticket, *tensors = ctx.saved_tensors
    grads = attention_backward_op(d_out, passed, ticket, tensors, ctx.present, ctx.scalars)
    by_name = {name: grad for name, grad, want in zip(_DIFFERENTIABLE, grads, ctx.wanted, strict=True) if want}
    return tuple(by_name.get(name) for name in _NAMES)


attention_op.register_autograd(_backward, setup_context=_setup_context)
