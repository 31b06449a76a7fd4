"""What must not change a bit: poison, batch mates, strides, repetition, torch's precision switches; and purity."""

from __future__ import annotations

import copy
import dataclasses
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attn_backends.backends.eager.adapter import backward, run
from attn_backends.backends.eager.philox import kept, philox4x32
from attn_backends.backends.eager.precision import exact_math
from attn_backends.backends.eager.sequences import Sequence
from attn_backends.call import Call
from attn_backends.merge import merge_states
from tests.backends.eager_calls import LAYOUTS, NAN, PAGE, Scene, call_of, results, scene
from tests.backends.eager_oracle import philox
from tests.backends.test_eager_features import INF, features

HIDDEN_FROM_ALL = torch.tensor([True, False, True, False, True, True, False])


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def same_bits(a: Call, b: Call) -> bool:
    assert a.lse is not None
    assert b.lse is not None
    return torch.equal(bits(a.out), bits(b.out)) and torch.equal(bits(a.lse), bits(b.lse))


@pytest.mark.parametrize("poison", [NAN, INF, -INF, 1e30], ids=str)
@pytest.mark.parametrize(
    "args",
    [
        {"attn_mask": HIDDEN_FROM_ALL.expand(5, 7)},
        {"attn_mask": torch.where(HIDDEN_FROM_ALL, 0.25, -INF).expand(5, 7), "causal": True},
        {"attn_mask": HIDDEN_FROM_ALL.expand(5, 7), "softcap": 2.0, "dropout_p": 0.3},
    ],
    ids=["bool", "float-causal", "softcap-dropout"],
)
def test_keys_that_no_row_sees_change_nothing(args: dict[str, Any], poison: float) -> None:
    """NaN, inf and huge numbers in hidden keys leave output and LSE bit-equal."""
    given = scene([5], [7])
    clean, dirty = call_of(given, **args), call_of(given, **args)
    hidden = [1, 3, 6]
    dirty.k[:, hidden] = poison
    dirty.v[:, hidden] = poison
    run(clean)
    run(dirty)
    assert same_bits(clean, dirty)


@pytest.mark.parametrize("poison", [NAN, INF, 1e30, -1e38], ids=str)
@pytest.mark.parametrize("tensor", ["k", "v"])
def test_a_key_that_some_rows_see_leaves_the_others_alone(tensor: str, poison: float) -> None:
    """Under causal the last key belongs to the last row; the rows before it are bit-equal. NaN reaches who sees it."""
    given = scene([6], [6])
    clean, dirty = call_of(given, causal=True), call_of(given, causal=True)
    getattr(dirty, tensor)[:, 5] = poison
    run(clean)
    run(dirty)
    assert torch.equal(bits(clean.out[:, :5]), bits(dirty.out[:, :5]))
    assert not torch.equal(clean.out[:, 5], dirty.out[:, 5])
    if math.isnan(poison):
        assert bool(dirty.out[:, 5].isnan().all())
    grads = backward(dirty, torch.ones_like(dirty.out).index_fill(1, torch.tensor([5]), 0.0), None)
    assert bool(grads.q[:, :5].isfinite().all())


def test_minus_inf_in_a_mask_hides_even_a_nan_score() -> None:
    """-inf hides like False: for these rows alone, though another row sees the NaN key."""
    given = scene([2], [3])
    mask = torch.tensor([[0.5, 0.0, -INF], [0.0, 0.0, 0.0]])
    clean, dirty = call_of(given, attn_mask=mask), call_of(given, attn_mask=mask)
    dirty.k[:, 2] = NAN
    run(clean)
    run(dirty)
    assert torch.equal(clean.out[:, 0], dirty.out[:, 0])
    assert bool(dirty.out[:, 1].isnan().all())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sequence_alone_equals_it_among_many(layout: str) -> None:
    """Batch mates, longer paddings and wider tables change no bit of a row."""
    names = ("everything", "dropout") if layout == "bshd" else ("causal", "softcap", "sinks")
    for name in names:
        given = scene([5] * 9, [37, 3, 60, 0, 11, 16, 1, 29, 64])
        alone = Scene(q=given.q[:1], k=given.k[:1], v=given.v[:1])
        args = features(1, 5, 64)[name]
        many = results(call_of(given, layout, **args))[0]
        one = results(call_of(alone, layout, **args))[0]
        assert torch.equal(bits(many[0]), bits(one[0]))
        assert torch.equal(bits(many[1]), bits(one[1]))


def test_a_decoding_row_alone_equals_it_among_16() -> None:
    """2100 keys, one query, GQA: the row does not depend on its batch mates."""
    given = scene([1] * 16, [2100] * 16, heads=(4, 2), width=(16, 16))
    alone = Scene(q=given.q[:1], k=given.k[:1], v=given.v[:1])
    many, one = results(call_of(given, causal=True))[0], results(call_of(alone, causal=True))[0]
    assert torch.equal(bits(many[0]), bits(one[0]))


def head_major(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def row_padded(x: torch.Tensor) -> torch.Tensor:
    buffer = torch.full((*x.shape[:-1], x.shape[-1] + 8), NAN, dtype=x.dtype)
    buffer[..., : x.shape[-1]] = x
    return buffer[..., : x.shape[-1]]


def row_step2(x: torch.Tensor) -> torch.Tensor:
    buffer = torch.full((x.shape[0], 2 * x.shape[1], *x.shape[2:]), NAN, dtype=x.dtype)
    buffer[:, ::2] = x
    return buffer[:, ::2]


def last_dim_step2(x: torch.Tensor) -> torch.Tensor:
    buffer = torch.full((*x.shape[:-1], 2 * x.shape[-1]), NAN, dtype=x.dtype)
    buffer[..., ::2] = x
    return buffer[..., ::2]


def odd_unit_strides(x: torch.Tensor) -> torch.Tensor:
    strides = [3 if size == 1 else step for size, step in zip(x.shape, x.stride(), strict=True)]
    return x.as_strided(x.shape, strides)


def shifted(x: torch.Tensor) -> torch.Tensor:
    buffer = torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape)
    return buffer.copy_(x)


@pytest.mark.parametrize("lay", [head_major, row_padded, row_step2, last_dim_step2, odd_unit_strides, shifted])
@pytest.mark.parametrize("which", ["q", "k", "v", "qkv"])
def test_strides_and_alignment_change_nothing(which: str, lay: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Any stride is legal on each tensor, and gives the bits of the contiguous call; dO too."""
    given = scene([33, 33], [40, 40], heads=(2, 2), width=(16, 16))
    plain, strided = call_of(given, causal=True), call_of(given, causal=True)
    for name in which:
        setattr(strided, name, lay(getattr(strided, name)))
    strided.out = lay(strided.out)
    run(plain)
    run(strided)
    assert same_bits(plain, strided)
    d_out = torch.randn(plain.out.shape, generator=torch.Generator().manual_seed(2))
    want, got = backward(plain, d_out, None), backward(strided, lay(d_out), None)
    assert all(torch.equal(getattr(want, name), getattr(got, name)) for name in "qkv")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_are_never_modified(layout: str) -> None:
    """Neither forward nor backward writes to an input."""
    given = scene([5] * 3, [7, 3, 1])
    call = call_of(given, layout, **features(3, 5, 7)["everything"])
    names = [field.name for field in dataclasses.fields(Call)]
    before = copy.deepcopy({n: v for n in names if isinstance(v := getattr(call, n), torch.Tensor)})
    run(call)
    if call.block_table is None:
        backward(call, torch.ones_like(call.out), torch.ones_like(call.lse) if call.lse is not None else None)
    for name, tensor in before.items():
        if name not in ("out", "lse"):
            assert torch.equal(bits(tensor), bits(getattr(call, name))), name


@pytest.mark.parametrize("setting", ["high", "medium", "autocast"])
def test_no_switch_of_torch_lowers_the_precision(setting: str) -> None:
    """Neither set_float32_matmul_precision nor autocast changes a bit, and the setting is as it was afterwards."""
    given = scene([16], [32], width=(64, 64))
    plain, switched = call_of(given), call_of(given)
    run(plain)
    before = torch.get_float32_matmul_precision()
    try:
        if setting == "autocast":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                run(switched)
        else:
            torch.set_float32_matmul_precision(setting)
            run(switched)
            assert torch.get_float32_matmul_precision() == setting
    finally:
        torch.set_float32_matmul_precision(before)
    assert same_bits(plain, switched)


def test_the_precision_is_restored_when_the_last_of_many_threads_leaves() -> None:
    """A call that ends does not take the guard away from one that still runs."""
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("this torch has one switch for all; the counting is the same")
    matmul: Any = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with exact_math(torch.device("cpu")):
            entered.set()
            leave.wait(10)

    matmul.fp32_precision = "tf32"
    thread = threading.Thread(target=hold)
    try:
        thread.start()
        assert entered.wait(10)
        run(call_of(scene([2], [2])))
        assert matmul.fp32_precision == "ieee"
        leave.set()
        thread.join()
        assert matmul.fp32_precision == "tf32"
    finally:
        leave.set()
        matmul.fp32_precision = before


def test_nothing_is_recorded_for_autograd() -> None:
    """The host owns autograd: tensors that require gradients may be passed as they are."""
    call = call_of(scene([2], [3]))
    call.q.requires_grad_()
    run(call)
    assert not call.out.requires_grad


def test_keys_in_two_parts_merge_to_the_whole() -> None:
    """Two calls over halves of the keys, merged by LSE, equal one call over all of them."""
    given = scene([4, 4], [9, 9], dtype=torch.float64)
    halves = [
        Scene(q=given.q, k=[k[part] for k in given.k], v=[v[part] for v in given.v])
        for part in (slice(0, 5), slice(5, 9))
    ]
    whole, a, b = (call_of(part, lse_dtype=torch.float64) for part in (given, *halves))
    for call in (whole, a, b):
        run(call)
    assert a.lse is not None
    assert b.lse is not None
    out, lse = merge_states(a.out, a.lse, b.out, b.lse)
    torch.testing.assert_close(out, whole.out, atol=1e-13, rtol=1e-13)
    torch.testing.assert_close(lse, whole.lse, atol=1e-13, rtol=1e-13)


def test_pages_may_lie_anywhere() -> None:
    """Renumbering the pages of the pool changes no bit."""
    call = call_of(scene([2, 2], [9, 6]), "NHD")
    moved = call_of(scene([2, 2], [9, 6]), "NHD")
    order = torch.randperm(call.k.shape[0], generator=torch.Generator().manual_seed(8))
    moved.k, moved.v = call.k[order], call.v[order]
    assert call.block_table is not None
    place = torch.argsort(order).to(torch.int32)
    moved.block_table = call.block_table.clone()
    for b, used in enumerate((math.ceil(9 / PAGE), math.ceil(6 / PAGE))):
        moved.block_table[b, :used] = place[call.block_table[b, :used].long()]
    run(call)
    run(moved)
    assert same_bits(call, moved)


# Known answers of the authors' Random123 distribution for philox4x32 with 10 rounds: counter, key, output.
KNOWN_ANSWERS = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "want"), KNOWN_ANSWERS, ids=["zeros", "ones", "pi"])
def test_philox_gives_the_published_answers(counter: list[int], key: list[int], want: list[int]) -> None:
    """Ten rounds of Philox4x32, word for word; the test's own integers agree."""
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    words = philox4x32((c0, c1, c2, c3), (key[0], key[1]))
    assert [int(word) for word in words] == want
    assert philox(counter, key[0] + (key[1] << 32)) == want


def test_dropout_keeps_the_declared_share_and_depends_on_every_coordinate() -> None:
    """About 1 - p is kept; seed, batch, head, query and key each matter."""

    def mask(index: int = 0, seed: int = 3) -> torch.Tensor:
        call = call_of(scene([50], [60]), dropout_p=0.3, dropout_seed=seed)
        return kept(call, Sequence(index=index, seq_q=50, seq_k=60), 4)

    one = mask()
    assert abs(one.double().mean() - 0.7) < 0.01
    assert torch.equal(one, mask())
    for other in (mask(index=1), mask(seed=4), mask(seed=3 + 2**32), one.flip(0), one.flip(1), one.flip(2)):
        assert abs((other == one).double().mean() - (0.7**2 + 0.3**2)) < 0.03
