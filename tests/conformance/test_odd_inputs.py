"""What careless kernels take for granted about a call, and what the inputs of cases therefore are not."""

from __future__ import annotations

import math

import pytest
import torch

from attn_backends.conformance.canonical import canonical
from attn_backends.conformance.case import ODD_BLOCK, Case, parse
from attn_backends.conformance.case_request import request_of
from attn_backends.conformance.checks.seen import seen_keys
from attn_backends.conformance.drawing import draw
from attn_backends.conformance.inputs import make_inputs, store
from attn_backends.conformance.oracle import oracle

PLAIN = Case()


@pytest.mark.parametrize("kind", ["bool", "bias"])
@pytest.mark.parametrize(
    ("dims", "seed", "shape"),
    [
        (2, 0, (17, 33)), (2, 1, (1, 33)), (3, 0, (4, 17, 33)), (3, 1, (4, 17, 33)), (4, 0, (2, 4, 17, 33)),
        (4, 1, (2, 1, 17, 33)),
    ],
)  # fmt: skip
def test_masks_broadcast_from_sizes_of_one(kind, dims, seed, shape):
    """Rows, heads and both; one head for all is a stride of 0 or a size of 1."""
    case = PLAIN.replace(mask=kind, mask_dims=dims, seed=seed)
    mask = make_inputs(case).given["attn_mask"]
    assert tuple(mask.shape) == shape
    assert (mask.stride()[0] == 0) is (dims == 3 and seed == 1)
    assert torch.equal(mask.double(), draw(case).mask.to(mask.dtype).double().expand(shape))


@pytest.mark.parametrize("dims", [2, 4])
def test_masks_are_not_contiguous(dims):
    """Keys before queries, or poison between the rows: NaN in a float mask, True in a bool one."""
    bias, shown = (
        make_inputs(PLAIN.replace(mask=kind, mask_dims=dims)).given["attn_mask"] for kind in ("bias", "bool")
    )
    assert not bias.is_contiguous()
    assert not shown.is_contiguous()
    if dims == 4:
        behind = bias.as_strided((2, 4, 17, 1), bias.stride(), 33)
        assert bool(behind.isnan().all())
        assert bool(shown.as_strided((2, 4, 17, 1), shown.stride(), 33).all())


def test_a_mask_of_one_row_can_still_hide_a_sequence():
    """With two to four dims and one row there is no row to empty; nothing breaks, and rows stay alike."""
    seen = seen_keys(draw(PLAIN.replace(mask="bool", mask_dims=2, seed=1)))
    assert bool((seen == seen[:, :, :1]).all())
    assert bool(seen.any())
    assert not bool(seen.all())


def test_blocks_need_not_be_square():
    """Queries and keys per block differ, in the mask as in the request; both readings of the mask agree."""
    case = PLAIN.replace(block_mask=5, block_mask_k=12)
    given = make_inputs(case).given["block_mask"]
    assert (given.block_q, given.block_k) == (5, 12)
    assert given.blocks.shape[2:] == (4, 3)
    assert request_of(case).block_mask_size == (5, 12)
    _same_visibility(case)


def test_block_masks_have_a_token_mask_at_odd_seeds():
    """Intersected inside; both readings of the mask agree."""
    assert make_inputs(PLAIN.replace(block_mask=16)).given["block_mask"].mask is None
    case = PLAIN.replace(block_mask=16, seed=1)
    inputs = make_inputs(case)
    assert not bool(inputs.given["block_mask"].mask.all())
    assert "block_mask.mask" in inputs.tensors()
    _same_visibility(case)


def _same_visibility(case):
    """The rigs' reading and the oracle's, by the keys that carry weight."""
    drawn = draw(case)
    flat = drawn.replace(q=torch.zeros_like(drawn.q))
    inputs = store(flat)
    exact = oracle(inputs.q, inputs.k, inputs.v, **inputs.given)
    counts = seen_keys(drawn).sum(dim=-1)
    assert torch.allclose(exact.lse.exp(), counts.double())


def test_k_and_v_may_be_scaled_each_in_its_own_way():
    """Other granularities beside other scales; the oracle reads the contract by itself."""
    case = canonical(
        PLAIN.replace(
            k_format="scaled-int8", v_format="scaled-int8", granularity="per_channel", granularity_v="per_token_head"
        )
    )
    given = make_inputs(case).given
    assert given["k_descale"].shape == (2, 40)
    assert given["v_descale"].shape == (2, 33, 2)
    assert (request_of(case).k_granularity, request_of(case).v_granularity) == ("per_channel", "per_token_head")
    assert case.granularities == {"per_channel", "per_token_head"}
    assert parse(case.id) == case
    assert canonical(case.replace(granularity_v="per_channel")).granularity_v is None


def test_blocks_of_scales_are_no_tile():
    """No kernel's tile: neither a power of two nor a multiple of 16."""
    assert ODD_BLOCK % 16
    assert ODD_BLOCK & (ODD_BLOCK - 1)


@pytest.mark.parametrize(("seed", "poison"), [(0, math.isnan), (1, math.isinf)])
def test_poison_is_nan_or_infinite(seed, poison):
    """What no sequence owns holds NaN at even seeds and inf at odd ones."""
    inputs = make_inputs(PLAIN.replace(batch=4, ragged=True, seed=seed))
    behind = inputs.k[2]  # a sequence without keys
    assert all(poison(x) for x in behind.flatten().tolist())


def test_a_block_that_check_takes_is_tried_where_it_takes_no_other():
    """`fp8` has tiles of 128 tokens: its cases of `block` have that block, and their ids say so and are read back."""
    from attn_backends import Device
    from attn_backends.conformance.plan import plan
    from attn_backends.registry.registry import default_registry

    made = plan(default_registry().snapshot().get("fp8"), "full", Device.pretend("h200"))
    blocked = [item.case for item in made.items if "block" in item.case.granularities and item.check == "oracle"]
    assert blocked
    assert {case.scale_block for case in blocked} == {128}
    assert all("per128" in case.id.split("-") and parse(case.id) == case for case in blocked)
    assert not [one for one in made.uncovered if "block" in str(one)]
