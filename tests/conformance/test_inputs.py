"""Inputs of cases: always the same, what the case says, and the request that planning asked with."""

from __future__ import annotations

import random

import pytest
import torch

from attn_backends import Request
from attn_backends.conformance.canonical import canonical
from attn_backends.conformance.case import GRANULARITIES, MEMORIES, VALUES, Case, parse
from attn_backends.conformance.case_request import request_of
from attn_backends.conformance.inputs import make_inputs
from attn_backends.conformance.lengths import lengths_of
from attn_backends.conformance.oracle import oracle
from attn_backends.errors import RequestError


def _drawn(seed: int) -> Case:
    choose = random.Random(seed).choice
    heads = choose(((4, 2), (4, 1), (1, 1)))
    return canonical(
        Case(
            dtype=choose(("float32", "float16", "bfloat16", "float64", "float8_e4m3fn", "int8")), batch=choose((1, 2, 4)),
            seq_q=choose((0, 1, 5, 17)), seq_k=choose((0, 1, 33, 40)), q_heads=heads[0], kv_heads=heads[1],
            head_dim=choose((40, 33, 1)), head_dim_v=choose((40, 24)), layout=choose(("bshd", "bhsd", "thd")),
            ragged=choose((False, True)), page_size=choose((None, None, 8, 5)), kv_layout=choose(("NHD", "HND")),
            k_format=choose(("dense", "scaled-int8", "scaled-fp8-e4m3", "scaled-fp8-e5m2")),
            v_format=choose(("dense", "scaled-int8", "scaled-fp8-e4m3")), granularity=choose(tuple(GRANULARITIES)),
            mask=choose(("none", "bool", "bias")), mask_dims=choose((2, 3, 4)), memory=choose(MEMORIES),
            values=choose(VALUES), seed=choose((0, 1)), sinks=choose((False, True)), alibi=choose((False, True)),
            block_mask=choose((None, 16)), block_mask_k=choose((None, 12)), granularity_v=choose((None, "per_head", "block")),
            grads=choose((False, True)), grad_bias=choose((False, True)),
            grad_sinks=choose((False, True)), causal=choose((False, True)), top_left=choose((False, True)),
            out_dtype=choose((None, "float32")), phase=choose((None, "append")), dropout=choose((0.0, 0.3)),
        )
    )  # fmt: skip


DRAWN = [_drawn(seed) for seed in range(120)]


def test_the_request_of_a_case_is_the_request_of_its_tensors():
    """Planning asks with the very request that the call makes (a mask's strides aside, which decide nothing here)."""
    for case in DRAWN:
        inputs = make_inputs(case)
        made = Request.from_tensors(inputs.q, inputs.k, inputs.v, **inputs.given).to_json()
        made.pop("mask_strides", None)
        assert made == request_of(case).to_json(), case.id


def test_ids_read_back():
    """A canonical case is its id."""
    assert [parse(case.id) for case in DRAWN] == DRAWN


def test_inputs_are_the_same_every_time():
    """Same case, same bytes."""
    for case in DRAWN[:30]:
        first, second = make_inputs(case).tensors(), make_inputs(case).tensors()
        for name, tensor in first.items():
            a, b = (x.detach().contiguous().flatten().view(torch.uint8) for x in (tensor, second[name]))
            assert torch.equal(a, b), (case.id, name)


def test_poison_reaches_no_expectation():
    """NaN lies in the inputs of most cases; the oracle never sees it."""
    for case in DRAWN:
        inputs = make_inputs(case)
        exact = oracle(inputs.q, inputs.k, inputs.v, **inputs.given)
        assert not exact.out.isnan().any(), case.id


def test_ragged_lengths_hold_zeros_and_the_maximum():
    """No keys, no queries and the longest sequence are all there."""
    lengths = lengths_of(Case(layout="thd", ragged=True, batch=4))
    assert 0 in lengths.q
    assert max(lengths.q) == 17
    assert 0 in lengths.k
    assert max(lengths.k) == 33


def test_a_paged_case_has_shuffled_pages_poison_and_wild_table_tails():
    """Pages in no order, NaN outside, entries past the length that no kernel may follow."""
    inputs = make_inputs(Case(page_size=8, ragged=True, batch=4))
    table = inputs.given["block_table"]
    assert {-1, 2**31 - 1} <= set(table.flatten().tolist())
    first = table[0, :2].tolist()
    assert first != sorted(range(len(first)))
    assert inputs.k.isnan().any()
    assert inputs.v.isnan().any()


@pytest.mark.parametrize("granularity", [word for word in GRANULARITIES if word != "none"])
def test_scales_are_not_one(granularity):
    """Every granularity has scales of its own for K and for V."""
    case = Case(k_format="scaled-int8", v_format="scaled-fp8-e4m3", granularity=granularity)
    given = make_inputs(case).given
    k, v = (torch.as_tensor(given[f"{name}_descale"]) for name in "kv")
    assert (k != 1).all()
    assert (v != 1).all()
    assert k.shape != v.shape or not torch.equal(k, v)


def test_k_and_v_lie_differently():
    """Where a kind of memory allows it, strides of K and V differ."""
    for memory in ("head_major", "row_padded", "row_step2", "last_dim_step2"):
        inputs = make_inputs(Case(memory=memory))
        assert inputs.k.stride() != inputs.v.stride(), memory


def test_masks_have_a_row_that_sees_nothing():
    """An empty row, whatever the form; -inf in a float mask; a sink of -inf."""
    for word in ("bool", "bias"):
        for dims in (2, 3, 4):
            given = make_inputs(Case(mask=word, mask_dims=dims, sinks=True)).given
            mask = given["attn_mask"]
            seen = mask if word == "bool" else mask != float("-inf")
            assert mask.dim() == dims
            assert (~seen).all(dim=-1).any()
            assert seen.any()
            assert given["sinks"].isinf().any()


def test_a_case_that_is_no_call_is_an_error():
    """Heads that do not divide are refused as such."""
    with pytest.raises(RequestError, match="num_q_heads"):
        request_of(Case(q_heads=3, kv_heads=2))
