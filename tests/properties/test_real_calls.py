"""Random real calls on tiny tensors: whoever fits on paper loads, runs, and agrees with eager."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch

from attn_backends import Request, attention, select
from attn_backends.device import Device

DENSE, QUANTISED = (torch.float32, torch.float64, torch.float16, torch.bfloat16), (torch.float8_e4m3fn, torch.int8)
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 8e-2}
PER_SHARD = 150
SHARDS = 4


def _tensor(rng: random.Random, *sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(dtype)


def _whole(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def draw_call(rng: random.Random) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """(q, k, v) and arguments of a legal call, in one of three shapes."""
    dtype = rng.choice(DENSE)
    draw = rng.choice((_dense, _dense, _packed, _paged))
    tensors, arguments, sizes = draw(rng, dtype)
    arguments |= _features(rng, dtype, *sizes)
    return tensors, arguments


def _heads(rng: random.Random) -> tuple[int, int]:
    kv = rng.choice((1, 2))
    return kv * rng.choice((1, 2, 7)), kv


def _dense(rng: random.Random, dtype: torch.dtype):
    batch, sq, sk = rng.choice((1, 2)), rng.choice((1, 3, 5)), rng.choice((1, 3, 8))
    (hq, hkv), d, dv = _heads(rng), rng.choice((8, 16, 20)), rng.choice((8, 16))
    q, k, v = (
        _tensor(rng, batch, sq, hq, d, dtype=dtype),
        _tensor(rng, batch, sk, hkv, d, dtype=dtype),
        _tensor(rng, batch, sk, hkv, dv, dtype=dtype),
    )
    arguments: dict[str, Any] = {}
    if rng.random() < 0.3:
        arguments["layout"] = "bhsd"
        q, k, v = (x.transpose(1, 2).contiguous() if rng.random() < 0.5 else x.transpose(1, 2) for x in (q, k, v))
    if rng.random() < 0.2:
        arguments["seq_lens"] = _whole(*[rng.randint(0, sk) for _ in range(batch)])
    if rng.random() < 0.2:
        k = torch.cat([k, k], dim=-1)[..., : k.shape[-1]]
    return (q, k, v), arguments, (batch, hq, sq, sk)


def _packed(rng: random.Random, dtype: torch.dtype):
    starts_q, starts_k = [0], [0]
    for _ in range(rng.choice((1, 3))):
        starts_q.append(starts_q[-1] + rng.choice((0, 1, 3)))
        starts_k.append(starts_k[-1] + rng.choice((0, 2, 5)))
    hq, hkv = _heads(rng)
    tensors = (
        _tensor(rng, starts_q[-1], hq, 16, dtype=dtype),
        _tensor(rng, starts_k[-1], hkv, 16, dtype=dtype),
        _tensor(rng, starts_k[-1], hkv, 8, dtype=dtype),
    )
    arguments = {"layout": "thd", "cu_seqlens_q": _whole(*starts_q), "cu_seqlens_k": _whole(*starts_k)}
    longest = (max(b - a for a, b in pairwise(s)) for s in (starts_q, starts_k))
    return tensors, arguments, (len(starts_q) - 1, hq, *longest)


def _paged(rng: random.Random, dtype: torch.dtype):
    batch, sq, page, per_row = rng.choice((1, 2)), rng.choice((1, 2)), rng.choice((2, 4)), 3
    hq, hkv = _heads(rng)
    stored = rng.choice((dtype, dtype, *QUANTISED))
    k, v = (_tensor(rng, batch * per_row, page, hkv, 8).clamp(-2, 2) for _ in range(2))
    arguments: dict[str, Any] = {}
    if stored != dtype:
        arguments |= {"k_descale": 0.5, "v_descale": torch.full((hkv,), 0.25)}
        arguments |= {"v_granularity": "per_head"}
    k, v = ((8 * x).round().to(stored) if stored == torch.int8 else x.to(stored) for x in (k, v))
    if rng.random() < 0.5:
        arguments["kv_layout"] = "HND"
        k, v = (x.transpose(1, 2).contiguous() for x in (k, v))
    pages = list(range(batch * per_row))
    rng.shuffle(pages)
    arguments["block_table"] = torch.tensor(pages, dtype=torch.int32).view(batch, per_row)
    arguments["seq_lens"] = _whole(*[rng.randint(0, per_row * page) for _ in range(batch)])
    return (_tensor(rng, batch, sq, hq, 8, dtype=dtype), k, v), arguments, (batch, hq, sq, per_row * page)


def _features(rng: random.Random, dtype: torch.dtype, batch: int, hq: int, sq: int, sk: int) -> dict[str, Any]:
    made: dict[str, Any] = {
        "causal": lambda: True,
        "causal_alignment": lambda: "top_left",
        "window_left": lambda: rng.choice((0, 1, 4)),
        "window_right": lambda: rng.choice((0, 2)),
        "softmax_scale": lambda: rng.choice((0.0, 0.3, -0.2)),
        "softcap": lambda: 2.0,
        "sinks": lambda: torch.linspace(-1, 1, hq),
        "alibi_slopes": lambda: torch.linspace(0.1, 0.5, hq),
        "attn_mask": lambda: _mask(rng, dtype, batch, hq, sq, sk),
        "return_lse": lambda: True,
        "deterministic": lambda: True,
        "batch_invariant": lambda: True,
        "dropout_p": lambda: 0.25,
    }
    chosen = rng.sample(sorted(made), rng.choice((0, 1, 1, 2, 3)))
    given = {name: made[name]() for name in chosen}
    return {**given, "dropout_seed": 7} if "dropout_p" in given else given


def _mask(rng: random.Random, dtype: torch.dtype, batch: int, hq: int, sq: int, sk: int) -> torch.Tensor:
    sizes = [rng.choice((1, size)) for size in (batch, hq, sq, sk)][rng.choice((0, 1, 2)) :]
    drawn = _tensor(rng, *sizes)
    return drawn > -0.5 if rng.random() < 0.5 else drawn.masked_fill(drawn < -1, -torch.inf).to(dtype)


def _agree(got: Any, expected: Any, tolerance: float) -> bool:
    pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else ((got, expected),)
    return all(
        torch.allclose(x.double(), y.double(), rtol=tolerance, atol=tolerance, equal_nan=False) for x, y in pairs
    )


@pytest.mark.parametrize("shard", range(SHARDS))
def test_who_fits_on_paper_runs_and_agrees_with_eager(shard, record_property):
    """No reasons imply no capability error: every backend that may serve a random call serves it, as eager does."""
    rng = random.Random(1000 + shard)
    ran: Counter[str] = Counter()
    for index in range(PER_SHARD):
        tensors, arguments = draw_call(rng)
        request = Request.from_tensors(*tensors, **arguments)
        decision = select(request, device=Device.of("cpu"))
        fitting = [candidate.name for candidate in decision.candidates if candidate.status != "rejected"]
        assert decision.backend in fitting
        expected = attention(*tensors, **arguments, backend="eager")
        ran["eager"] += 1
        for name in set(fitting) - {"eager"}:
            got = attention(*tensors, **arguments, backend=name)
            ran[name] += 1
            assert _agree(got, expected, TOLERANCE[tensors[0].dtype]), (shard, index, name, request)
    record_property("real calls", f"shard {shard}: " + ", ".join(f"{n} {c}" for n, c in sorted(ran.items())))
    assert sum(ran.values()) >= PER_SHARD + 25, ran
    assert len(ran) >= 3, ran


@pytest.mark.parametrize("shard", range(SHARDS))
def test_who_fits_a_backward_on_paper_gives_gradients_like_eager(shard):
    """The same for calls with gradients of q, k and v, over the output and, where it is asked, the LSE."""
    rng = random.Random(2000 + shard)
    compared = 0
    for index in range(40):
        tensors, arguments, sizes = rng.choice((_dense, _packed))(rng, rng.choice((torch.float32, torch.float64)))
        arguments |= _features(rng, tensors[0].dtype, *sizes)
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        request = Request.from_tensors(*leaves, **arguments)
        assert request.needs_backward
        decision = select(request, device=Device.of("cpu"))
        expected = _gradients(leaves, arguments, "eager")
        for candidate in decision.candidates:
            if candidate.status != "rejected" and candidate.name != "eager":
                got = _gradients(leaves, arguments, candidate.name)
                compared += 1
                assert _agree(got, expected, 1e-3), (shard, index, candidate.name, request)
    assert compared >= 10


def _gradients(leaves: list[torch.Tensor], arguments: dict[str, Any], backend: str) -> tuple[torch.Tensor, ...]:
    result = attention(*leaves, **arguments, backend=backend)
    out, lse = result if isinstance(result, tuple) else (result, None)
    loss = (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)).sum()
    if lse is not None:
        loss = loss + lse[lse.isfinite()].sum()
    return torch.autograd.grad(loss, leaves)
