"""Cases, tensors and `Call`s for the torch backends, and which backend's manifest admits which case."""

from __future__ import annotations

import importlib
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from attn_backends.box import axis_values, parse_box
from attn_backends.call import Call
from attn_backends.device import Device
from attn_backends.matching import MatchIndex
from attn_backends.request import Request
from tests.backends import sdpa_oracle as oracle

BACKENDS = ("sdpa_math", "sdpa_flash", "sdpa_mem_efficient", "sdpa_cudnn", "sdpa_cpu_flash", "flex")
DEVICES = ("cpu", *(("cuda",) if torch.cuda.is_available() else ()))
FOLDER = Path(importlib.import_module("attn_backends.box").__file__).parent / "backends"
POISON = float("nan")


@dataclass(frozen=True)
class Case:
    id: str
    batch: int = 2
    seq_q: int = 17
    seq_k: int = 17
    q_heads: int = 2
    kv_heads: int = 2
    head_dim: int = 16
    head_dim_v: int | None = None
    causal: bool = False
    alignment: str = "bottom_right"
    left: int = -1
    right: int = -1
    scale: float | None = None
    softcap: float | None = None
    alibi: bool = False
    mask: str | None = None  # a name of MASKS
    seq_lens: tuple[int, ...] | None = None
    layout: str = "bshd"
    memory: str = "contiguous"
    lse: bool = True
    grads: bool = False
    grad_bias: bool = False
    deterministic: bool = False
    out_dtype: str | None = None
    seed: int = 0

    @property
    def width_v(self) -> int:
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    def but(self, **changes) -> Case:
        return replace(self, **changes)


@cache
def manifest(name: str) -> dict:
    return tomllib.loads((FOLDER / name / "backend.toml").read_text())


@cache
def boxes(name: str) -> list:
    def fail(axis: str, why: str) -> Exception:
        return AssertionError(f"{name}: {axis}: {why}")

    return [parse_box(raw, f"{name} {index}", fail) for index, raw in enumerate(manifest(name)["capability"], 1)]


@cache
def device_of(kind: str) -> Device:
    if kind == "cuda":
        return Device(kind="cuda", name="here", arch=torch.cuda.get_device_capability())
    return Device(kind="cpu", name="cpu")


def request_of(case: Case, dtype: torch.dtype, **changes) -> Request:
    asked = {
        "dtype": str(dtype).removeprefix("torch."), "batch": case.batch, "seq_q": case.seq_q, "seq_k": case.seq_k,
        "num_q_heads": case.q_heads, "num_kv_heads": case.kv_heads, "head_dim_qk": case.head_dim,
        "head_dim_v": case.width_v, "causal": case.causal, "causal_alignment": case.alignment,
        "window_left": case.left, "window_right": case.right, "softmax_scale": case.scale, "softcap": case.softcap,
        "alibi": case.alibi, "mask": "bool" if is_bool(case) else "none", "bias": case.mask is not None and not is_bool(case),
        "dense_lengths": case.seq_lens is not None, "layout": case.layout, "return_lse": case.lse,
        "needs_backward": case.grads, "grad_bias": case.grad_bias, "deterministic": case.deterministic,
        "out_dtype": "same" if out_dtype(case, dtype) == dtype else case.out_dtype,
    }  # fmt: skip
    return Request(**{**asked, **changes})


@cache
def _index(name: str) -> MatchIndex:
    return MatchIndex([boxes(name)])


def misses(name: str, request: Request, device: Device) -> list:
    verdict = _index(name).match(axis_values(request, device))[0]
    return [] if verdict.fits else list(verdict.misses)


def admits(name: str, request: Request, device: Device) -> bool:
    return not misses(name, request, device)


def out_dtype(case: Case, dtype: torch.dtype) -> torch.dtype:
    return dtype if case.out_dtype is None else getattr(torch, case.out_dtype)


# -- tensors -----------------------------------------------------------------------------------------------------


def _lower(dtype):
    return torch.finfo(dtype).min


MASKS = {
    "bool": lambda c, _t: (torch.rand(c.batch, c.q_heads, c.seq_q, c.seq_k) > 0.4) | (torch.arange(c.seq_k) == 0),
    "bool_2d": lambda c, _t: torch.rand(c.seq_q, c.seq_k) > 0.3,
    "bool_empty_rows": lambda c, _t: (torch.rand(c.seq_q, c.seq_k) > 0.3) & (torch.arange(c.seq_q) % 3 != 1)[:, None],
    "bool_all_hidden": lambda c, _t: torch.zeros(1, 1, 1, c.seq_k, dtype=torch.bool).expand(c.batch, 1, 1, c.seq_k),
    "bool_padding": lambda c, _t: (torch.arange(c.seq_k) < c.seq_k - 5).view(1, 1, 1, -1).repeat(c.batch, 1, 1, 1),
    "bool_per_head": lambda c, _t: torch.rand(c.q_heads, 1, c.seq_k) > 0.5,
    "bool_rows": lambda c, _t: torch.arange(c.seq_q)[:, None] % 2 == 0,
    "bias": lambda c, t: torch.randn(c.batch, c.q_heads, c.seq_q, c.seq_k).to(t),
    "bias_3d": lambda c, t: torch.randn(c.q_heads, c.seq_q, c.seq_k).to(t),
    "bias_float32": lambda c, _t: torch.randn(1, c.q_heads, 1, c.seq_k) * 3 + 1e-4,
    "bias_holes": lambda c, t: torch.randn(c.seq_q, c.seq_k).masked_fill(torch.rand(c.seq_q, c.seq_k) > 0.6, -torch.inf).to(t),
    "bias_empty_rows": lambda c, t: torch.randn(c.seq_q, c.seq_k).masked_fill((torch.arange(c.seq_q) % 3 == 0)[:, None], -torch.inf).to(t),
    "bias_lowest": lambda c, t: torch.full((c.seq_q, c.seq_k), _lower(t), dtype=t),
    "bias_lowest_float32": lambda c, _t: torch.full((c.seq_q, c.seq_k), _lower(torch.float32)),
}  # fmt: skip


def is_bool(case: Case) -> bool:
    return case.mask is not None and case.mask.startswith("bool")


def laid_out(tensor, memory):
    """The same logical [B, S, H, D] values in other memory, NaN in between."""
    batch, seq, heads, width = tensor.shape
    if memory == "contiguous":
        return tensor.contiguous()
    if memory == "head_major":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if memory == "row_padded":
        room = tensor.new_full((batch, seq, heads, width + 8), POISON)
        view = room[..., :width]
    elif memory == "row_odd":
        room = tensor.new_full((batch, seq, heads, width + 3), POISON)
        view = room[..., 1 : width + 1]
    elif memory == "row_step2":
        room = tensor.new_full((batch, 2 * seq, heads, width), POISON)
        view = room[:, ::2]
    elif memory == "last_dim_step2":
        room = tensor.new_full((batch, seq, heads, 2 * width), POISON)
        view = room[..., ::2]
    else:
        raise AssertionError(memory)
    view.copy_(tensor)
    return view


def odd_units(tensor):
    strides = [3 if size == 1 else step for size, step in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.as_strided(tensor.shape, strides)


@dataclass
class Given:
    """Logical operands on the CPU, as [B, H, S, D]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | None
    seq_lens: torch.Tensor | None
    slopes: torch.Tensor | None
    d_out: torch.Tensor
    d_lse: torch.Tensor
    scale: float

    def poisoned(self, value):
        """The same with `value` at every key that no row of the group sees; None if there is no such key."""
        heads = self.k.shape[1]
        seen = self.visible.any(2).unflatten(1, (heads, -1)).any(2)
        if bool(seen.all()):
            return None
        hidden = ~seen.unsqueeze(-1)
        return replace_tensors(self, k=self.k.masked_fill(hidden, value), v=self.v.masked_fill(hidden, value))


def replace_tensors(given, **changes):
    fresh = Given(**{**{f: getattr(given, f) for f in Given.__dataclass_fields__}, **changes})
    fresh.visible = given.visible
    return fresh


def given_for(case: Case, dtype: torch.dtype) -> Given:
    torch.manual_seed(case.seed)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float32).to(dtype)

    q = normal(case.batch, case.q_heads, case.seq_q, case.head_dim)
    k = normal(case.batch, case.kv_heads, case.seq_k, case.head_dim)
    v = normal(case.batch, case.kv_heads, case.seq_k, case.width_v)
    d_out = normal(case.batch, case.q_heads, case.seq_q, case.width_v).to(out_dtype(case, dtype))
    d_lse = torch.randn(case.batch, case.q_heads, case.seq_q)
    mask = None if case.mask is None else MASKS[case.mask](case, dtype)
    lens = None if case.seq_lens is None else torch.tensor(case.seq_lens, dtype=torch.int32)
    slopes = torch.rand(case.q_heads) if case.alibi else None
    scale = case.head_dim**-0.5 if case.scale is None else case.scale
    given = Given(q, k, v, mask, lens, slopes, d_out, d_lse, scale)
    given.visible = oracle.visible_keys(case, mask, lens)
    return given


def in_layout(tensor, case, device):
    """[B, H, S, D] -> the case's layout and memory, on the device."""
    on = laid_out(tensor.transpose(1, 2).to(device), case.memory)
    return on if case.layout == "bshd" else on.transpose(1, 2)


def call_of(case: Case, given: Given, device: str) -> Call:
    q, k, v = (in_layout(t, case, device) for t in (given.q, given.k, given.v))
    shape = (*q.shape[:-1], case.width_v)

    def there(tensor):
        return None if tensor is None else tensor.to(device)

    return Call(
        q=q, k=k, v=v, out=torch.full(shape, POISON, dtype=given.d_out.dtype, device=device), layout=case.layout,
        lse=torch.full((case.batch, case.q_heads, case.seq_q), POISON, device=device) if case.lse else None,
        causal=case.causal, causal_alignment=case.alignment, window_left=case.left, window_right=case.right,
        softmax_scale=given.scale, softcap=case.softcap, alibi_slopes=there(given.slopes),
        attn_mask=there(given.mask), seq_lens=there(given.seq_lens), max_seqlen_q=case.seq_q,
        max_seqlen_k=case.seq_k, needs_backward=case.grads, grad_bias=case.grad_bias,
        deterministic=case.deterministic,
    )  # fmt: skip


def adapter(name: str):
    return importlib.import_module(f"attn_backends.backends.{name}.adapter")


@dataclass
class Answer:
    """Results as [B, H, S, D] on the CPU."""

    out: torch.Tensor
    lse: torch.Tensor | None = None
    q: torch.Tensor | None = None
    k: torch.Tensor | None = None
    v: torch.Tensor | None = None
    bias: torch.Tensor | None = None

    def parts(self):
        return {name: t for name in ("out", "lse", "q", "k", "v", "bias") if (t := getattr(self, name)) is not None}


def answer(name: str, case: Case, given: Given, device: str, expanded_d_out: bool = False) -> Answer:
    """Run a backend on a case: forward, and backward where the case asks for gradients. Inputs must survive it."""
    call = call_of(case, given, device)
    inputs = {field: getattr(call, field) for field in ("q", "k", "v", "attn_mask", "seq_lens", "alibi_slopes")}
    before = {field: t.clone() for field, t in inputs.items() if t is not None}
    adapter(name).run(call)
    heads_first = (lambda t: t.transpose(1, 2)) if case.layout == "bshd" else (lambda t: t)
    result = Answer(heads_first(call.out).cpu(), None if call.lse is None else call.lse.cpu())
    if case.grads:
        d_out = in_layout(given.d_out, case, device)
        if expanded_d_out:
            d_out = torch.ones((), dtype=d_out.dtype, device=device).expand(d_out.shape)
        d_lse = given.d_lse.to(device) if case.lse else None
        grads = adapter(name).backward(call, d_out, d_lse)
        for field in ("q", "k", "v"):
            grad, source = getattr(grads, field), getattr(call, field)
            assert grad.shape == source.shape, field
            assert grad.dtype == source.dtype, field
            setattr(result, field, heads_first(grad).cpu())
        if case.grad_bias:
            assert grads.bias.shape == call.attn_mask.shape
            assert grads.bias.dtype == call.attn_mask.dtype
            result.bias = grads.bias.cpu()
    for field, t in before.items():
        assert torch.equal(torch.nan_to_num(t), torch.nan_to_num(inputs[field])), f"{field} was modified"
    return result


# -- tolerance (of float64 only what the truth itself has) ---------------------------------------------------------------------------------------------------

UNIT = {torch.float64: 2.0**-46, torch.float32: 2.0**-21, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


_TERMS = 0.25  # terms of this size cancel to a true 0 in some cases


def assert_near(got, want, dtype, what, factor=8.0):
    """Rounding only: |error| within `factor` units of the values' size (their own, and their rms or that of the terms)."""
    unit = UNIT[dtype]
    got, want = got.double(), want.double()
    finite = torch.isfinite(want)
    assert torch.equal(torch.isfinite(got), finite), f"{what}: not finite in other places than the truth"
    assert torch.equal(got[~finite], want[~finite]), what
    if not finite.any():
        return
    got, want = got[finite], want[finite]
    size = want.square().mean().sqrt().clamp(min=_TERMS)
    worst = ((got - want).abs() / (want.abs() + size)).max().item()
    assert worst <= factor * unit, f"{what}: error {worst / unit:.1f} units of {dtype}, allowed {factor}"


def check(name: str, case: Case, dtype: torch.dtype, device: str) -> Answer:
    """One backend, one case, against the truth; judged by the coarser of q's dtype and the output's."""
    given = given_for(case, dtype)
    truth = oracle.forward(case, given.q, given.k, given.v, given.scale, given.mask, given.seq_lens, given.slopes)
    got = answer(name, case, given, device)
    coarser = max((dtype, out_dtype(case, dtype)), key=UNIT.get)
    assert got.out.dtype == out_dtype(case, dtype)
    assert_near(got.out, truth.out, coarser, "out")
    empty = ~truth.visible.any(-1)
    assert torch.equal(got.out[empty], torch.zeros_like(got.out[empty])), "an empty row is not exactly 0"
    if case.lse:
        exact = dtype in (torch.float32, torch.float64)
        assert_near(got.lse, truth.lse.float(), torch.float32, "lse", 8.0 if exact else 2000.0)
    if case.grads:
        d_lse = given.d_lse.masked_fill(empty, 0) if case.lse else None
        dq, dk, dv, d_bias = oracle.backward(case, truth, given.q, given.k, given.v, given.scale, given.d_out, d_lse)
        for field, want in (("q", dq), ("k", dk), ("v", dv)):
            assert_near(getattr(got, field), want, coarser, f"d{field}", 40.0)
        if case.grad_bias:
            assert_near(
                got.bias,
                d_bias.sum_to_size(*((1,) * (4 - got.bias.dim())), *got.bias.shape).view(got.bias.shape),
                got.bias.dtype,
                "dbias",
                24.0,
            )
    return got
