"""What paged_decode takes and refuses, without a GPU: boxes, `check`, and the shape of its grids."""

from __future__ import annotations

import pytest

from attn_backends import Device, Request, select
from attn_backends.backends.paged_decode.configs import Traits, config_for, configs, parts
from attn_backends.backends.paged_decode.limits import check


def request(**changes):
    fields = {
        "dtype": "bfloat16", "seq_q": 1, "seq_k": 8192, "batch": 64, "num_q_heads": 32, "num_kv_heads": 8,
        "head_dim_qk": 128, "head_dim_v": 128, "page_size": 16, "kv_layout": "NHD", "num_pages": 32768,
        "phase": "decode", "causal": True,
    }  # fmt: skip
    return Request(**{**fields, **changes})


FP8 = {"format": "scaled-fp8-e4m3", "granularity": "per_channel"}
TAKEN = {
    "bf16": {},
    "K in e4m3 per channel, V dense": {f"k_{name}": value for name, value in FP8.items()},
    "V alone in int8 per token": {"v_format": "scaled-int8", "v_granularity": "per_token_head"},
    "five heads share one": {"num_q_heads": 40},
    "new tokens in a window": {"seq_q": 17, "phase": "append", "window_left": 1023},
    "sinks, softcap, ALiBi": {"sinks": True, "softcap": 30.0, "alibi": True},
    "heads of 256": {"head_dim_qk": 256, "head_dim_v": 256},
    "192 and 128": {"head_dim_qk": 192},
    "a latent": {"num_q_heads": 128, "num_kv_heads": 1, "head_dim_qk": 576, "head_dim_v": 512, "softmax_scale": 0.07},
    "more elements than 32 bits count": {"num_pages": 2**20},
}
REFUSED = {
    "dense tensors": ({"page_size": None, "kv_layout": None, "num_pages": None, "phase": "prefill"}, "kv_layout"),
    "heads wider than 256": ({"head_dim_qk": 320, "head_dim_v": 320}, "head_dim"),
    "a latent in float32": ({"dtype": "float32", "num_kv_heads": 1, "head_dim_qk": 576, "head_dim_v": 512}, "dtype"),
    "a mask": ({"mask": "bool"}, "mask"),
    "a quantised q": (
        {"dtype": "float8_e4m3fn", "q_format": "scaled-fp8-e4m3", "q_granularity": "per_tensor"},
        "dtype",
    ),
    "scales per block": (
        {"k_format": "scaled-int8", "k_granularity": "block", "scale_block": 64},
        "scale_granularity",
    ),
    "gradients": ({"needs_backward": True}, "backward"),
    "NaN that some rows see": ({"nan_safe": True}, "nan_safe"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_takes(name):
    found = select(request(**TAKEN[name]), backend="paged_decode", device=Device.pretend("h200"))
    assert found.backend == "paged_decode"


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_the_axis(name):
    changes, axis = REFUSED[name]
    found = select(request(**changes), device=Device.pretend("h200"))
    mine = next(candidate for candidate in found.candidates if candidate.name == "paged_decode")
    assert axis in {reason.axis for reason in mine.reasons}


def test_tiles_that_do_not_fit_are_a_reason():
    small = Device.pretend("h200", smem_bytes=40_000)
    [reason] = check(request(), small)
    assert (reason.code, reason.axis) == ("smem", "head_dim")
    assert "40000" in str(reason.hint)


def test_tiles_that_fit_are_none():
    assert check(request(), Device.pretend("h200")) == []


def test_every_row_serves_some_call():
    """A row behind others that take all its calls would be a promise nobody keeps."""
    served = set()
    for size, stored in ((2, 2), (2, 3), (2, 4), (4, 8), (4, 2)):
        for width in (64, 128, 256, 576):
            for rows in (1, 64):
                for units in (8, 40, 200, 1024):
                    traits = Traits.of(
                        size=size, stored=stored, widths=(width, width), rows=rows, units=units, batch_invariant=False
                    )
                    served |= {config_for(arch, traits) for arch in (0, 90)}
    assert served >= set(configs())


@pytest.mark.parametrize(
    ("width", "tiles"),
    [
        (64, (64, 0)),
        (80, (128, 0)),
        (96, (128, 0)),
        (192, (128, 64)),
        (200, (256, 0)),
        (256, (256, 0)),
        (576, (512, 64)),
    ],
)
def test_a_wide_head_is_two_tiles_where_they_fill_it(width, tiles):
    assert parts(width) == tiles


def test_a_row_has_the_same_tiles_in_any_batch_under_batch_invariance():
    one, many = (
        config_for(90, Traits.of(size=2, stored=4, widths=(128, 128), rows=rows, units=units, batch_invariant=True))
        for rows, units in ((4, 8), (256, 2048))
    )
    assert one == many
