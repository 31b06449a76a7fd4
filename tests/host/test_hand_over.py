"""A kernel that brings memory of its own leaves it in the place of the output, where the host allows and nobody can tell."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch.testing._internal.two_tensor import TwoTensor  # torch's own example of a tensor that wraps others

import attn_backends
from attn_backends.call import Call
from attn_backends.host.arguments import arguments
from attn_backends.host.dispatch import find_bound

BACKENDS = ("sdpa_cpu_flash", "sdpa_math")
SHAPE = (2, 24, 4, 16)


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(SHAPE, generator=generator) for _ in range(3)]


@pytest.fixture
def handed(monkeypatch):
    """What kernels offered, and whether it was taken."""
    found = []
    real = Call.hand_over

    def watched(call, result):
        taken = real(call, result)
        found.append((result, taken))
        return taken

    monkeypatch.setattr(Call, "hand_over", watched)
    return found


@pytest.mark.parametrize("given", [{}, {"return_lse": True}, {"causal": True}], ids=str)
def test_the_caller_gets_the_kernels_own_memory(tensors, handed, given):
    """Nothing is copied, on the short way through the host and on the long one, and the answer is right."""
    got = attn_backends.attention(*tensors, **given, backend="sdpa_cpu_flash")
    out = got[0] if isinstance(got, tuple) else got
    ((kernels, taken),) = handed
    assert taken
    assert out.data_ptr() == kernels.data_ptr()
    assert out.is_contiguous()
    torch.testing.assert_close(
        out, attn_backends.attention(*tensors, causal=given.get("causal", False), backend="eager")
    )


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("one", [(0,), (2,), (0, 2), (1,), (0, 1, 2)], ids=str)
def test_an_axis_of_one_entry_may_have_any_stride(handed, one, layout):
    """A kernel has its own idea of them; the caller gets the host's, and no copy."""
    shape = [1 if axis in one else size for axis, size in enumerate(SHAPE)]
    tensors = [torch.randn(shape) for _ in range(3)]
    if layout == "bhsd":
        tensors = [tensor.transpose(1, 2).contiguous() for tensor in tensors]
    got = attn_backends.attention(*tensors, layout=layout, backend="sdpa_cpu_flash")
    ((kernels, taken),) = handed
    assert taken
    assert got.data_ptr() == kernels.data_ptr()
    assert got.is_contiguous()
    right = attn_backends.attention(*tensors, layout=layout, backend="eager")
    torch.testing.assert_close(got, right)


def test_other_strides_are_copied():
    """Along an axis of more entries they are not the caller's."""
    out = torch.empty(2, 3, 4)
    call = Call(q=out, k=out, v=out, out=out, owns_out=True)
    assert not call.hand_over(torch.randn(2, 4, 3).transpose(1, 2))
    assert call.hand_over(torch.randn(2, 3, 4))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_callers_own_memory_is_written(tensors, handed, backend):
    """`out=` stays the caller's tensor, filled."""
    out = torch.full(SHAPE, torch.nan)
    got = attn_backends.attention(*tensors, out=out, backend=backend)
    assert got is out
    assert not any(taken for _result, taken in handed)
    torch.testing.assert_close(out, attn_backends.attention(*tensors, backend="eager"))


def test_an_output_over_its_own_input_is_computed_aside(tensors):
    """`out=q` is no memory to hand anything into."""
    right = attn_backends.attention(*tensors, backend="eager")
    q, k, v = tensors
    assert attn_backends.attention(q, k, v, out=q, backend="sdpa_cpu_flash") is q
    torch.testing.assert_close(q, right)


def test_two_calls_have_their_own_outputs(tensors):
    """An answer is nobody else's: not an input's, and not the next call's."""
    first = attn_backends.attention(*tensors, backend="sdpa_cpu_flash")
    kept = first.clone()
    second = attn_backends.attention(tensors[0] + 1, *tensors[1:], backend="sdpa_cpu_flash")
    places = {tensor.data_ptr() for tensor in (first, second, *tensors)}
    assert len(places) == 5
    torch.testing.assert_close(first, kept, rtol=0, atol=0)


def test_gradients_after_a_hand_over_are_right(tensors, handed):
    """The backward reads the output where it now lies."""
    results = []
    for backend in ("sdpa_cpu_flash", "eager"):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        out = attn_backends.attention(*leaves, causal=True, backend=backend)
        results.append(torch.autograd.grad(out.square().sum(), leaves))
    assert any(taken for _result, taken in handed)
    for got, right in zip(*results, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)


def test_changing_the_output_before_the_backward_is_an_error(tensors):
    """Changing it is allowed, and a backward that needs what was there says so, as torch's own attention does."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    out = attn_backends.attention(*leaves, backend="sdpa_cpu_flash")
    out.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tensor_that_wraps_others_gets_its_answer(tensors, backend):
    """Such a tensor, a DTensor say, has no memory of its own: the address of all of them is 0, and none is the other's."""
    wrapped = [TwoTensor(tensor, tensor.clone()) for tensor in tensors]
    out = attn_backends.attention(*wrapped, backend=backend)
    right = attn_backends.attention(*tensors, backend="eager")
    for part in (out.a, out.b):
        torch.testing.assert_close(part, right)


REFUSED = {
    "the memory is a caller's": {"owns_out": False},
    "another dtype": {"result": torch.zeros(SHAPE, dtype=torch.float64)},
    "another shape": {"result": torch.zeros(2, 24, 4, 8)},
    "other strides": {"result": torch.zeros(2, 4, 24, 16).transpose(1, 2)},
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_a_caller_could_tell_apart_is_copied(tensors, why):
    """The output keeps its memory, and the backend is told to write it."""
    given = REFUSED[why]
    q, k, v = tensors
    out = torch.empty(SHAPE)
    call = Call(q=q, k=k, v=v, out=out, owns_out=given.get("owns_out", True))
    assert not call.hand_over(given.get("result", torch.zeros(SHAPE)))
    assert call.out is out


def test_the_host_owns_what_it_allocates(tensors):
    """Only then: with `out=` it does not."""
    for out, owned in ((None, True), (torch.empty(SHAPE), False)):
        given = arguments({"backend": "sdpa_math", "out": out})
        bound = find_bound(*tensors, given)
        assert bound.call(*tensors, given).owns_out is owned
