"""What `attention()` gives back and where: out=, dtypes, dropout, empty calls, inputs, hooks, the ledger."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from attn_backends import (
    Policy,
    Request,
    RequestError,
    UnknownBackendError,
    add_hooks,
    attention,
    hookimpl,
    launches,
    register,
    remove_hooks,
    unregister,
    use,
)
from attn_backends.host import dispatch
from tests.selector.scenes import BOX


def tensors(*, dtype=torch.float32, heads=(4, 2), sq=3, sk=5, width=8):
    generator = torch.Generator().manual_seed(3)
    shapes = ((2, sq, heads[0], width), (2, sk, heads[1], width), (2, sk, heads[1], width))
    return tuple(torch.randn(*shape, generator=generator).to(dtype) for shape in shapes)


def count(backend):
    """Launches of one backend, over all decisions."""
    return sum(record.launches for record in launches().values() if record.backend == backend)


# -- out and dtypes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "sdpa_math", "sdpa_cpu_flash"])
@pytest.mark.parametrize("kind", ["contiguous", "strided", "transposed"])
def test_out_is_written_in_place(backend, kind):
    """The given tensor is returned, holds the result, and nothing beside it is touched."""
    q, k, v = tensors()
    want = attention(q, k, v, backend=backend)
    buffer = torch.full((2, 6, 4, 16), 9.0)
    out = {"contiguous": torch.full((2, 3, 4, 8), 9.0), "strided": buffer[:, ::2, :, :8],
           "transposed": torch.full((2, 4, 3, 8), 9.0).transpose(1, 2)}[kind]  # fmt: skip
    assert attention(q, k, v, backend=backend, out=out) is out
    assert torch.allclose(out, want, atol=1e-6)
    assert (buffer[:, 1::2] == 9).all()
    assert (buffer[..., 8:] == 9).all()


@pytest.mark.parametrize("backend", ["eager", "sdpa_math", "sdpa_cpu_flash"])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_out_may_lie_in_an_input(backend, name):
    """Writing over q, k or v gives what writing beside them gives."""
    q, k, v = tensors(heads=(4, 4), sq=5)
    want = attention(q, k, v, causal=True, backend=backend)
    assert torch.equal(attention(q, k, v, causal=True, backend=backend, out={"q": q, "k": k, "v": v}[name]), want)


def test_out_and_lse_come_together():
    """With return_lse, out= is the first of the pair."""
    q, k, v = tensors()
    out = torch.empty(2, 3, 4, 8)
    got, lse = attention(q, k, v, out=out, return_lse=True)
    assert got is out
    assert torch.allclose(lse, attention(q, k, v, return_lse=True)[1])


def test_out_is_refused_where_gradients_are_recorded():
    """Writing in place and differentiating do not go together; without grad it works."""
    q, k, v = tensors()
    q.requires_grad_()
    with pytest.raises(RequestError, match="out"):
        attention(q, k, v, out=torch.empty(2, 3, 4, 8))
    with torch.no_grad():
        attention(q, k, v, out=torch.empty(2, 3, 4, 8))


@pytest.mark.parametrize("name", ["k", "v", "sinks", "attn_mask"])
def test_out_is_refused_whichever_input_has_the_gradient(name):
    """The same for a gradient of k, v, the sinks or a float mask."""
    q, k, v = tensors()
    given = {"k": k, "v": v, "sinks": torch.zeros(4), "attn_mask": torch.zeros(3, 5)}
    given[name].requires_grad_()
    more = {name: given[name]} if name in ("sinks", "attn_mask") else {}
    with pytest.raises(RequestError, match="out"):
        attention(q, k, v, **more, out=torch.empty(2, 3, 4, 8))


@pytest.mark.parametrize("given", ["float32", torch.float32, "float64", torch.bfloat16], ids=str)
def test_out_dtype_is_what_is_asked(given):
    """By name or as a dtype; the numbers are those of the call."""
    q, k, v = tensors(dtype=torch.float16)
    wanted = given if isinstance(given, torch.dtype) else getattr(torch, given)
    got = attention(q, k, v, out_dtype=given)
    assert got.dtype == wanted
    assert torch.allclose(got.float(), attention(q, k, v).float(), atol=1e-2)


def test_a_quantised_query_gives_bfloat16():
    """An fp8 q has its output in bfloat16 unless another dtype is asked."""
    q, k, v = tensors()
    scales = {"q_descale": 1.0, "k_descale": 1.0, "v_descale": 1.0}
    low = [x.to(torch.float8_e4m3fn) for x in (q, k, v)]
    assert attention(*low, **scales).dtype == torch.bfloat16
    assert attention(*low, **scales, out_dtype="float32").dtype == torch.float32


def test_inputs_are_never_modified():
    """Whatever the arguments, every tensor that goes in comes out bit for bit."""
    q, k, v = tensors()
    more = {"sinks": torch.zeros(4), "alibi_slopes": torch.full((4,), 0.5), "attn_mask": torch.ones(3, 5).bool()}
    before = [x.clone() for x in (q, k, v, *more.values())]
    attention(q, k, v, causal=True, seq_lens=torch.tensor([5, 2], dtype=torch.int32), **more)
    assert all(torch.equal(x, y) for x, y in zip((q, k, v, *more.values()), before, strict=True))


# -- empty calls -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sq", "sk"), [(0, 5), (3, 0), (0, 0)])
def test_empty_tensors_are_legal(sq, sk):
    """No queries: an empty output. No keys: zeros, LSE -inf; gradients are zeros."""
    q, k, v = (x.requires_grad_() for x in tensors(sq=sq, sk=sk))
    out, lse = attention(q, k, v, return_lse=True)
    assert out.shape == (2, sq, 4, 8)
    assert (out == 0).all()
    assert (lse == -torch.inf).all()
    out.sum().backward()
    assert all(x.grad.shape == x.shape and (x.grad == 0).all() for x in (q, k, v))


def test_an_empty_batch_is_legal():
    """A batch of no sequences has an output of none."""
    q, k, v = (x[:0] for x in tensors())
    assert attention(q, k, v).shape == (0, 3, 4, 8)


# -- dropout -----------------------------------------------------------------------------------------------------------


def test_one_seed_drops_the_same():
    """The same seed gives the same result bit for bit, another seed another one."""
    q, k, v = tensors(sk=64)
    a, b, c = (attention(q, k, v, dropout_p=0.5, dropout_seed=seed) for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_manual_seed_governs_dropout():
    """Without a seed one is drawn from torch's generator: repeatable, and new at each call."""
    q, k, v = tensors(sk=64)

    def twice():
        torch.manual_seed(5)
        return attention(q, k, v, dropout_p=0.5), attention(q, k, v, dropout_p=0.5)

    (a, b), (c, d) = twice(), twice()
    assert torch.equal(a, c)
    assert torch.equal(b, d)
    assert not torch.equal(a, b)


def test_a_seed_is_drawn_on_the_cpu_and_has_64_bits():
    """Whatever torch's default device; and the largest seed is one like any other."""
    q, k, v = tensors()
    with torch.device("meta"):
        assert attention(q, k, v, dropout_p=0.5).device.type == "cpu"
    given = [attention(q, k, v, dropout_p=0.5, dropout_seed=seed) for seed in (2**64 - 1, 2**64 - 1, 2**63 - 1)]
    assert torch.equal(given[0], given[1])
    assert not torch.equal(given[0], given[2])


def test_without_dropout_the_generator_is_left_alone():
    """A call that drops nothing draws nothing."""
    q, k, v = tensors()
    torch.manual_seed(5)
    attention(q, k, v)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))


def test_dropout_keeps_the_mean():
    """What is kept is scaled up: over many keys the mean of V = 1 stays near 1."""
    q, k = torch.zeros(1, 8, 1, 8), torch.zeros(1, 4096, 1, 8)
    out = attention(q, k, torch.ones(1, 4096, 1, 8), dropout_p=0.25, dropout_seed=9)
    assert (out - 1).abs().max() < 0.05


# -- down-casts --------------------------------------------------------------------------------------------------------


@pytest.fixture
def half_only():
    """A backend of float16 alone that says which dtype it was given."""
    seen = []

    def run(call):
        seen.append((call.q.dtype, call.out.dtype))
        call.out.fill_(2.0)

    box = {**BOX, "device": ["cpu"], "dtype": ["float16"], "alignment": 1}
    register({"name": "half_only", "capability": [box], "priority": 999}, run)
    yield seen
    unregister("half_only")


def test_a_downcast_happens_when_allowed_and_is_recorded(half_only):
    """The kernel sees float16, the caller gets float32, and decision and ledger say so."""
    q, k, v = tensors()
    before = count("half_only")
    out = attention(q, k, v, policy=Policy(allow_downcast=True))
    assert half_only == [(torch.float16, torch.float16)]
    assert (out.dtype, out.unique().tolist()) == (torch.float32, [2.0])
    record = [r for r in launches().values() if r.backend == "half_only"]
    assert count("half_only") == before + 1
    assert any("downcast float32 -> float16" in name for r in record for name in r.conversions)


def test_under_a_downcast_the_kernel_writes_the_dtype_it_declares(half_only):
    """Asking for the output's own dtype by name changes nothing: the kernel writes float16, the host converts."""
    out = attention(*tensors(), policy=Policy(allow_downcast=True), out_dtype=torch.float32)
    assert half_only == [(torch.float16, torch.float16)]
    assert (out.dtype, out.unique().tolist()) == (torch.float32, [2.0])


def test_a_downcast_never_happens_silently(half_only):
    """Without the policy the backend is out, for its dtype."""
    attention(*tensors())
    assert half_only == []


# -- what was decided --------------------------------------------------------------------------------------------------


def test_a_backend_that_goes_between_decision_and_load_is_decided_anew(monkeypatch):
    """An unforced choice that was unregistered meanwhile is no error: the next one serves."""
    box = {**BOX, "device": ["cpu"], "alignment": 1}
    register({"name": "fleeting", "capability": [box], "priority": 999}, lambda call: call.out.fill_(7.0))
    load = dispatch.registry.load

    def late(name):
        if name == "fleeting":
            unregister(name)
        return load(name)

    monkeypatch.setattr(dispatch.registry, "load", late)
    q, k, v = tensors()
    assert (attention(q, k, v) != 7.0).all()
    with pytest.raises(UnknownBackendError):
        attention(q, k, v, backend="fleeting")


@pytest.mark.parametrize(("lengths", "phase"), [((2, 3), "append"), ((1, 4), "mixed"), ((1, 1), "decode")])
def test_a_request_from_tensors_is_that_of_the_call(lengths, phase):
    """`Request.from_tensors` reads packed lengths as the call does."""
    box = {**BOX, "device": ["cpu"], "alignment": 1, "varlen": "any", "kv_layout": "any", "page_size": "any"}
    seen = []
    register({"name": "spy", "capability": [box]}, lambda call: seen.append(call.phase))
    cu_seqlens = torch.tensor([0, lengths[0], sum(lengths)], dtype=torch.int32)
    given = {"layout": "thd", "cu_seqlens_q": cu_seqlens, "seq_lens": torch.tensor([4, 7], dtype=torch.int32),
             "block_table": torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)}  # fmt: skip
    q, cache = torch.zeros(sum(lengths), 2, 8), torch.zeros(4, 4, 2, 8)
    try:
        attention(q, cache, cache, backend="spy", **given)
    finally:
        unregister("spy")
    assert (seen, Request.from_tensors(q, cache, cache, **given).phase) == ([phase], phase)


# -- ledger and hooks --------------------------------------------------------------------------------------------------


def test_the_ledger_counts_each_launch_under_its_decision():
    """Three calls, three launches, one id; a refused call counts nothing."""
    q, k, v = tensors(width=24)
    before = count("eager")
    for _ in range(3):
        attention(q, k, v, backend="eager")
    with pytest.raises(RequestError):
        attention(q, k, v, backend="eager", softcap=0.0)
    assert count("eager") == before + 3


def test_the_ledger_counts_from_many_threads():
    """Eight threads with 200 calls each: 1,600 launches, none lost."""
    q, k, v = tensors(width=32)
    before = count("sdpa_math")

    def run():
        for _ in range(200):
            attention(q, k, v, backend="sdpa_math")

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(run) for _ in range(8)]:
            future.result()
    assert count("sdpa_math") == before + 1600


def test_scopes_reach_calls_and_threads_do_not_share_them():
    """Inside `use` calls go to that backend; a thread beside it decides for itself."""
    q, k, v = tensors(width=40)
    attention(q, k, v)
    before = count("eager")
    with use("eager"), ThreadPoolExecutor(1) as pool:
        attention(q, k, v)
        pool.submit(attention, q, k, v).result()
    assert count("eager") == before + 1


class Launches:
    """Keeps what it is told of launches."""

    def __init__(self):
        self.seen = []

    @hookimpl
    def attn_backends_launched(self, launch):
        self.seen.append((launch.backend, launch.decision.id))


def test_a_launch_hook_sees_every_launch():
    """Also the ones bound before it came, with decision and backend; and none after it went."""
    q, k, v = tensors(width=48)
    attention(q, k, v)
    watcher = Launches()
    add_hooks(watcher, "launches")
    try:
        attention(q, k, v)
        attention(q, k, v, backend="eager", causal=True, return_lse=True)
    finally:
        remove_hooks("launches")
    attention(q, k, v)
    assert [name for name, _ in watcher.seen] == ["sdpa_cpu_flash", "eager"]
    assert {decision for _, decision in watcher.seen} <= set(launches())


class Raises:
    """A watcher of launches that fails."""

    @hookimpl
    def attn_backends_launched(self, launch):
        raise RuntimeError("launched: broken on purpose")


def test_a_launch_hook_that_raises_fails_no_call(caplog):
    """It is reported once and switched off."""
    q, k, v = tensors(width=56)
    add_hooks(Raises(), "raises")
    try:
        want = attention(q, k, v)
        assert torch.equal(attention(q, k, v), want)
    finally:
        remove_hooks("raises")
    assert caplog.text.count("broken on purpose") == 1


def test_an_error_inside_a_kernel_names_the_decision():
    """The kernel's own exception passes through, with a note, and counts as an error."""

    def run(call):
        raise ValueError("the kernel's own words")

    register({"name": "raising", "capability": [{**BOX, "device": ["cpu"], "alignment": 1}]}, run)
    try:
        with pytest.raises(ValueError, match="own words") as caught:
            attention(*tensors(), backend="raising")
        record = next(r for r in launches().values() if r.backend == "raising")
        assert (record.launches, record.errors) == (0, 1)
        assert any(record.id in note and "raising" in note for note in caught.value.__notes__)
    finally:
        unregister("raising")


def test_starts_come_side_by_side_whatever_their_steps():
    """Kernels read cumulative lengths from memory that follows on itself."""
    seen = []

    def look(call):
        seen.append((call.cu_seqlens_q.stride(), call.cu_seqlens_k.stride()))
        call.out.zero_()

    box = {**BOX, "layout": ["thd"], "varlen": [False, True]}
    register({"name": "looks-at-starts", "capability": [box]}, look)
    try:
        starts = torch.tensor([[0, 7], [2, 7], [5, 7]], dtype=torch.int32)[:, 0]
        rows = torch.randn(5, 2, 8)
        given = {"layout": "thd", "cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": 3, "max_seqlen_k": 3}
        attention(rows, rows, rows, **given, backend="looks-at-starts")
    finally:
        unregister("looks-at-starts")
    assert seen == [((1,), (1,))]
