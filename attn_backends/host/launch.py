"""`Bound`: a decision and its loaded kernel, ready to be called again and again on calls of the same shape.

It builds the `Call` (outputs allocated here, by the host), runs the kernel, counts the launch. Everything that does not
change between calls of one shape is worked out once, in `bind_call`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import empty_like, is_autocast_enabled  # names of this module: `fast` looks them up at every call
from torch.cuda import current_device, is_current_stream_capturing

from attn_backends.call import Call
from attn_backends.errors import LoadError, RequestError
from attn_backends.host.checks import check_contents
from attn_backends.host.ledger import Account, Launch, account
from attn_backends.host.reading import as_dtype, natural_out_dtype
from attn_backends.registry.hooking import active_hooks

if TYPE_CHECKING:
    from attn_backends.host.arguments import Arguments
    from attn_backends.host.geometry import Geometry
    from attn_backends.registry.loading import Loaded
    from attn_backends.request import Request
    from attn_backends.selector.decision import Decision

Output = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
_NUMBERS = ("cu_seqlens_q", "cu_seqlens_k", "seq_lens")  # kernels read them side by side
_TENSORS = (
    "sinks", "alibi_slopes", "attn_mask", "block_mask", "cu_seqlens_q", "cu_seqlens_k", "seq_lens", "block_table",
    "q_descale", "k_descale", "v_descale",
)  # fmt: skip


@dataclass(slots=True, kw_only=True, eq=False)
class Bound:
    """A chosen kernel and what is fixed about its calls."""

    decision: Decision
    loaded: Loaded
    account: Account
    static: dict[str, Any]  # the fields of Call that no longer change
    out_shape: tuple[int, ...]
    out_like_q: bool  # the output has q's shape, dtype and contiguity
    out_dtype: torch.dtype
    final_dtype: torch.dtype  # what the caller gets; differs under a down-cast
    lse_shape: tuple[int, ...] | None
    geometry: Geometry
    autocast_device: str
    empty: bool
    check_contents: bool
    downcast: torch.dtype | None
    workspace_bytes: int
    converts: bool
    needs_backward: bool
    on_gpu: bool = False
    simple: bool = False  # whether `fast` will do
    plan: Any = None
    planned: bool = False
    number: int = field(default_factory=itertools.count().__next__)  # its own among all of this process

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Arguments) -> Output:
        """Run on tensors of the bound shape."""
        if self.needs_backward:
            from attn_backends.host.differentiate import differentiable

            if self.check_contents:
                check_contents(a, self.geometry)
            return differentiable(self, q, k, v, a)
        return self.forward(q, k, v, a)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Arguments) -> Output:
        """The forward alone; nothing is recorded for gradients."""
        if self.check_contents:
            check_contents(a, self.geometry)
        call = self.call(q, k, v, a)
        self.run(call)
        return self.result(call, a)

    def fast(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The shortest way, for a call without further tensors, gradients, LSE or anything to convert."""
        out = empty_like(q) if self.out_like_q else q.new_empty(self.out_shape, dtype=self.out_dtype)
        fields = self.static.copy()
        fields["q"], fields["k"], fields["v"], fields["out"] = q, k, v, out
        call = Call.made_of(fields)
        try:
            if is_autocast_enabled(self.autocast_device) or (q.is_cuda and current_device() != q.get_device()):
                self.undisturbed(self.loaded.run, call)
            else:
                self.loaded.run(call)
        except Exception as error:
            self.note(error)
            raise
        if self.on_gpu and is_current_stream_capturing():
            self.account.capture("forward")
        else:
            self.account.launches.step()
        if active_hooks() is not None:
            self.tell_hooks(call)
        return out

    def undisturbed(self, function: Callable[..., Any], call: Call, *given: Any) -> Any:
        """A backend's callable without autocast, on the device of the call's tensors: a kernel goes to the current one."""
        if not call.q.is_cuda or current_device() == call.q.get_device():
            return self.without_autocast(function, call, *given)
        with torch.cuda.device(call.q.get_device()):
            return self.without_autocast(function, call, *given)

    def without_autocast(self, function: Callable[..., Any], *given: Any) -> Any:
        """A backend's callable with autocast off: the call's dtypes and the kernel's numerics are those declared."""
        if not is_autocast_enabled(self.autocast_device):
            return function(*given)
        with torch.autocast(self.autocast_device, enabled=False):
            return function(*given)

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: Arguments) -> Call:
        """The resolved call, outputs allocated."""
        direct = (
            a.out is not None and a.out.dtype == self.out_dtype and self.downcast is None
            and not _in_memory_of(a.out, (q, k, v, a.attn_mask, a.sinks, a.alibi_slopes))
        )  # fmt: skip
        out = a.out if direct and a.out is not None else q.new_empty(self.out_shape, dtype=self.out_dtype)
        lse = None if self.lse_shape is None else q.new_empty(self.lse_shape, dtype=torch.float32)
        q, k, v = (self.lowered(tensor) for tensor in (q, k, v))
        given = {name: value for name in _TENSORS if (value := getattr(a, name)) is not None}
        for name in ("q_descale", "k_descale", "v_descale"):
            if name in given:
                given[name] = torch.as_tensor(given[name], dtype=torch.float32, device=q.device)
        if "attn_mask" in given:
            given["attn_mask"] = self.lowered_mask(given["attn_mask"])
        for name in _NUMBERS:
            if name in given and not given[name].is_contiguous():
                given[name] = given[name].contiguous()
        call = Call(q=q, k=k, v=v, out=out, lse=lse, **self.static, **given)
        if self.static["dropout_p"] > 0:
            call.dropout_seed = _seed(a)
        if self.workspace_bytes:
            call.workspace = q.new_empty(self.workspace_bytes, dtype=torch.uint8)
        return call

    def lowered(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in the dtype that the kernel runs in, under a recorded down-cast."""
        if self.downcast is None or not tensor.is_floating_point() or tensor.element_size() < 2:
            return tensor
        return tensor.detach().to(self.downcast)

    def lowered_mask(self, mask: torch.Tensor) -> torch.Tensor:
        """The mask beside tensors that were cast down: bool or float32."""
        return mask if self.downcast is None or mask.dtype == torch.bool else mask.detach().to(torch.float32)

    def run(self, call: Call) -> None:
        """Launch, and count it."""
        if self.empty:
            _fill_empty(call)
            return
        try:
            if self.loaded.plan is not None:
                call.plan = self.planned_for(call)
            self.undisturbed(self.loaded.run, call)
        except Exception as error:
            self.note(error)
            raise
        if self.on_gpu and is_current_stream_capturing():
            self.account.capture("forward")
        else:
            self.account.launches.step()
        if self.converts or self.downcast is not None:
            self.account.convert(self.conversions(call))
        if active_hooks() is not None:
            self.tell_hooks(call)

    def backward(self, call: Call, d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Any:
        """The backend's gradients; an error says under which decision it happened."""
        try:
            found = self.undisturbed(self.loaded.backward, call, d_out, d_lse)  # type: ignore[arg-type]  # it has one
        except Exception as error:
            self.note(error)
            raise
        if self.on_gpu and is_current_stream_capturing():
            self.account.capture("backward")
        else:
            self.account.backwards.step()
        return found

    def tell_hooks(self, call: Call) -> None:
        """Tell the hooks that watch launches."""
        hooks = active_hooks()
        if hooks is not None and hooks.watches_launches:
            conversions = tuple(self.conversions(call))
            hooks.launched(Launch(decision=self.decision, backend=self.decision.backend or "", conversions=conversions))

    def planned_for(self, call: Call) -> Any:
        """The backend's plan, made at the first call."""
        if not self.planned and self.loaded.plan is not None:
            self.plan = self.without_autocast(self.loaded.plan, call)
            self.planned = True
        return self.plan

    def conversions(self, call: Call) -> list[tuple[str, int]]:
        """What this launch converted, and how many bytes that wrote."""
        found = list(self.loaded.conversions(call)) if self.loaded.conversions is not None else []
        if self.downcast is not None:
            size = sum(tensor.numel() * tensor.element_size() for tensor in (call.q, call.k, call.v))
            found.append((f"downcast {self.decision.request.dtype} -> {self.decision.downcast}", size))
        return found

    def result(self, call: Call, a: Arguments) -> Output:
        """What the caller gets: the output in its dtype and place, with the LSE if asked."""
        out = call.out
        if a.out is not None and out is not a.out:
            out = a.out.copy_(out)
        elif out.dtype != self.final_dtype:
            out = out.to(self.final_dtype)
        return (out, call.lse) if call.lse is not None else out

    def note(self, error: Exception) -> None:
        """Count an error and say under which decision it happened."""
        self.account.errors.step()
        error.add_note(f"attn-backends: raised by backend {self.decision.backend!r} under decision {self.decision.id}")


def bind_call(
    decision: Decision, loaded: Loaded, request: Request, q: torch.Tensor, a: Arguments, g: Geometry
) -> Bound:
    """Work out once what is fixed for calls of this shape. Raises RequestError for an unfit `out`.

    `request` is the call's own; `decision.request` may be another one of the same bucket.
    """
    if request.needs_backward and loaded.backward is None:
        raise LoadError(f"{decision.backend}: declares backward, but its manifest names no `backward` callable")
    out_shape = (*q.shape[:-1], g.head_dim_v)
    final = _final_dtype(q, a)
    downcast = getattr(torch, decision.downcast) if decision.downcast else None
    computed = downcast if downcast is not None and request.out_dtype == "same" else final
    check_out(request, q, a, g)
    lse_shape = None
    if a.return_lse:
        lse_shape = (g.num_q_heads, q.shape[0]) if g.packed else (g.batch, g.num_q_heads, g.seq_q)
    workspace = loaded.workspace(request) if loaded.workspace is not None else 0
    bound = Bound(
        decision=decision, loaded=loaded, account=account(decision), static=_static(request, a, g, q),
        out_shape=out_shape, out_like_q=q.is_contiguous() and computed == q.dtype and out_shape == tuple(q.shape),
        out_dtype=computed, final_dtype=final, lse_shape=lse_shape, geometry=g, downcast=downcast, autocast_device=q.device.type if torch.amp.is_autocast_available(q.device.type) else "cpu",
        empty=q.numel() == 0, workspace_bytes=int(workspace), needs_backward=request.needs_backward,
        on_gpu=q.is_cuda, check_contents=checks_contents(q, a),
        converts=bool(loaded.conversions and decision.chosen and decision.chosen.conversions),
    )  # fmt: skip
    bound.simple = not (
        bound.needs_backward or bound.empty or downcast or workspace or loaded.plan or bound.converts or lse_shape
        or bound.check_contents or a.out is not None or a.dropout_p > 0
        or any(getattr(a, name) is not None for name in _TENSORS)
    )  # fmt: skip
    return bound


def _static(request: Request, a: Arguments, g: Geometry, q: torch.Tensor) -> dict[str, Any]:
    """The fields of `Call` that are alike for every call of this shape, without those at their default.

    A window as long as both sequences hides nothing: no kernel need cope with a larger number.
    """
    beyond = g.seq_q + g.seq_k
    fields = {
        "layout": a.layout, "causal": a.causal, "causal_alignment": a.causal_alignment,
        "window_left": min(a.window_left, beyond), "window_right": min(a.window_right, beyond),
        "softcap": a.softcap, "max_seqlen_q": g.seq_q, "max_seqlen_k": g.seq_k,
        "softmax_scale": float(q.shape[-1] ** -0.5 if a.softmax_scale is None else a.softmax_scale),
        "kv_layout": a.kv_layout, "scale_block": a.scale_block, "dropout_p": a.dropout_p,
        "needs_backward": request.needs_backward, "grad_bias": request.grad_bias, "grad_sinks": request.grad_sinks,
        "deterministic": a.deterministic, "batch_invariant": a.batch_invariant, "phase": request.phase,
        "attn_type": a.attn_type, "graph": request.graph, "owns_out": a.out is None,
        **{f"{name}_{what}": getattr(request, f"{name}_{what}") for name in "qkv" for what in ("format", "granularity")},
    }  # fmt: skip
    always = {"dropout_p"}
    return {name: value for name, value in fields.items() if name in always or value != _DEFAULTS[name]}


_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Call)}


def check_out(request: Request, q: torch.Tensor, a: Arguments, g: Geometry) -> None:
    """Raise RequestError unless `out`, where it is given, can take the result."""
    if a.out is None:
        return
    shape, dtype = (*q.shape[:-1], g.head_dim_v), _final_dtype(q, a)
    if tuple(a.out.shape) != shape or a.out.dtype != dtype:
        raise RequestError("out", f"{a.out.dtype} {list(a.out.shape)}", f"{dtype} {list(shape)}")
    if any(size > 1 and step == 0 for size, step in zip(shape, a.out.stride(), strict=True)):
        raise RequestError("out", f"strides {list(a.out.stride())}", "a tensor whose elements have their own memory")
    if request.needs_backward:
        raise RequestError("out", "given", "none while gradients are recorded")


def _in_memory_of(out: torch.Tensor, inputs: tuple[torch.Tensor | None, ...]) -> bool:
    """Whether `out` may overlap an input: then the result is computed aside, and copied when no input is read any more."""
    own = out.untyped_storage().data_ptr()
    return any(tensor is not None and tensor.untyped_storage().data_ptr() == own for tensor in inputs)


def _final_dtype(q: torch.Tensor, a: Arguments) -> torch.dtype:
    return natural_out_dtype(q.dtype) if a.out_dtype is None else as_dtype(a.out_dtype)


def checks_contents(q: torch.Tensor, a: Arguments) -> bool:
    """Whether lengths and tables are read value by value: where that costs no sync, or the caller wants it."""
    given = a.seq_lens is not None or a.cu_seqlens_q is not None or a.cu_seqlens_k is not None
    return given and (a.validate or not q.is_cuda)


def _fill_empty(call: Call) -> None:
    """A call without query rows: nothing to compute."""
    call.out.zero_()
    if call.lse is not None:
        call.lse.fill_(float("-inf"))


def _seed(a: Arguments) -> int:
    """The caller's seed, else one drawn from torch's default generator of the CPU, so that `manual_seed` governs."""
    if a.dropout_seed is None:
        return int(torch.randint(0, 2**62, (), device="cpu").item())
    return a.dropout_seed
