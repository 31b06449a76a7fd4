"""From a kind of layer to its calls: prefill, append, decode, training."""

import subprocess
import sys
from typing import Any

import pytest

from attn_backends.errors import RequestError
from attn_backends.planning import LayerKind, layer_kinds, load_config, requests
from attn_backends.request import Request


def kind_of(model: str, name: str) -> LayerKind:
    return next(kind for kind in layer_kinds(load_config(model)) if kind.name == name)


def calls_of(model: str, name: str, **choices: Any) -> dict[str, Request]:
    return {call.phase: call.request for call in requests(kind_of(model, name), **choices)}


def fields(request: Request, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(request, name) for name in names)


def test_a_decoder_in_its_four_phases() -> None:
    """Lengths, cache and gradients of each phase."""
    calls = calls_of("llama-3.1-8b", "full")
    shape = ("phase", "batch", "seq_q", "seq_k", "page_size", "kv_layout", "num_pages", "needs_backward")
    assert {phase: fields(request, *shape) for phase, request in calls.items()} == {
        "prefill": ("prefill", 1, 8192, 8192, None, None, None, False),
        "append": ("append", 4, 512, 8192, 16, "NHD", 4 * 512, False),
        "decode": ("decode", 32, 1, 8192, 16, "NHD", 32 * 512, False),
        "training": ("prefill", 1, 8192, 8192, None, None, None, True),
    }
    assert all(request.causal and request.attn_type == "decoder" for request in calls.values())


def test_windows_cap_and_scale_are_in_every_phase() -> None:
    """No feature is dropped on the way."""
    for request in calls_of("gemma-2-27b-it", "sliding 4096").values():
        assert fields(request, "window_left", "softcap") == (4095, 50.0)
        assert request.softmax_scale == pytest.approx(1 / 12)


def test_sinks_and_their_gradient() -> None:
    """Sinks in every phase, their gradient in training alone."""
    calls = calls_of("gpt-oss-20b", "sliding 128")
    assert all(request.sinks for request in calls.values())
    assert {phase: request.grad_sinks for phase, request in calls.items()} == {
        "prefill": False,
        "append": False,
        "decode": False,
        "training": True,
    }


def test_a_learned_bias_has_a_gradient() -> None:
    """Bias in every phase of the self attention; gradient and dropout in training."""
    calls = calls_of("t5-base", "decoder")
    assert all(request.bias and request.softmax_scale == 1.0 for request in calls.values())
    assert fields(calls["training"], "grad_bias", "dropout_p") == (True, 0.1)
    assert fields(calls["prefill"], "grad_bias", "dropout_p") == (False, 0.0)
    assert not any(request.bias or request.grad_bias for request in calls_of("t5-base", "cross").values())


def test_cross_attention_reads_the_encoder() -> None:
    """Keys are the encoder's, nothing is hidden."""
    calls = calls_of("whisper-large-v3", "cross")
    assert fields(calls["prefill"], "seq_q", "seq_k", "causal", "attn_type") == (448, 1500, False, "encoder_decoder")
    assert fields(calls["decode"], "seq_q", "seq_k", "num_pages") == (1, 1500, 32 * 94)


def test_compressed_kv_decompresses_in_prefill_and_not_in_decode() -> None:
    """192/128 with a KV head each against 576/512 with one, at the same scale."""
    calls = calls_of("deepseek-v3", "mla")
    shape = ("head_dim_qk", "head_dim_v", "num_q_heads", "num_kv_heads")
    for phase in ("prefill", "training"):
        assert fields(calls[phase], *shape) == (192, 128, 128, 128)
    for phase in ("append", "decode"):
        assert fields(calls[phase], *shape) == (576, 512, 128, 1)
    assert len({request.softmax_scale for request in calls.values()}) == 1


def test_the_scale_of_a_latent_is_that_of_the_decompressed_head() -> None:
    """Without YaRN the prefill has the default scale, and decode the same number as a custom one."""
    widths = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    (kind,) = layer_kinds({**widths, "num_attention_heads": 4, "num_hidden_layers": 2})
    calls = {call.phase: call.request for call in requests(kind)}
    assert calls["prefill"].softmax_scale is None
    assert calls["decode"].softmax_scale == pytest.approx(192**-0.5)


def test_global_tokens_make_the_window_a_mask() -> None:
    """Window and mask intersect, so a window would hide the global tokens."""
    windowed = calls_of("longformer-base-4096", "encoder local 512")["prefill"]
    opened = calls_of("longformer-base-4096", "encoder local 512 with global tokens")["prefill"]
    assert fields(windowed, "window_left", "window_right", "mask", "seq_q") == (256, 256, "none", 4096)
    assert fields(opened, "window_left", "window_right", "mask", "seq_q") == (-1, -1, "bool", 4096)


def test_chunks_need_a_mask_only_beyond_one_chunk() -> None:
    """Inside one chunk the layer is plain causal attention."""
    base = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2, "attention_chunk_size": 4096}
    (kind,) = layer_kinds(base)
    assert requests(kind, context=4096)[0].request.mask == "none"
    assert requests(kind, context=4097)[0].request.mask == "bool"


def test_windows_of_an_image_are_packed() -> None:
    """Many short sequences in one call."""
    request = calls_of("qwen2.5-vl-7b", "vision window 64")["prefill"]
    assert fields(request, "layout", "varlen", "batch", "seq_q", "total_q") == ("thd", True, 128, 64, 8192)


def test_the_callers_choices() -> None:
    """Context, batch, page size, dtype, cache format and chunk."""
    chosen = {"context": 1000, "batch": 3, "page_size": 64, "dtype": "float16", "kv_format": "scaled-fp8-e4m3"}
    calls = calls_of("llama-3.1-8b", "full", **chosen, chunk=100)
    assert fields(calls["append"], "seq_q", "seq_k", "batch", "num_pages", "dtype") == (100, 1000, 3, 48, "float16")
    assert fields(calls["decode"], "k_format", "v_format", "k_granularity") == (*["scaled-fp8-e4m3"] * 2, "per_tensor")
    assert fields(calls["prefill"], "k_format", "k_granularity", "dtype") == ("dense", "none", "float16")


def test_a_context_of_one_has_no_append() -> None:
    """An append of one token would be a decode."""
    assert list(calls_of("gpt2", "full", context=1)) == ["prefill", "decode", "training"]


@pytest.mark.parametrize(
    ("choice", "field"),
    [
        ({"context": 0}, "context"),
        ({"context": 2.5}, "context"),
        ({"chunk": 0}, "chunk"),
        ({"batch": 0}, "batch"),
        ({"page_size": 0}, "page_size"),
        ({"dtype": "float31"}, "dtype"),
        ({"kv_format": "fp8"}, "k_format"),
    ],
)
def test_an_illegal_choice_is_a_request_error(choice: dict[str, Any], field: str) -> None:
    """Field, value and what is allowed."""
    with pytest.raises(RequestError, match=f"^{field}: got"):
        calls_of("llama-3.1-8b", "full", **choice)


def test_alignment_is_never_claimed_beyond_the_rows() -> None:
    """Rows of 50 elements of two bytes are multiples of four bytes, whatever the allocation."""
    (kind,) = layer_kinds({"num_attention_heads": 4, "head_dim": 50, "num_hidden_layers": 2})
    assert requests(kind)[0].request.alignment == 4


def test_planning_needs_no_torch() -> None:
    """A fresh interpreter that blocks torch, triton, numba and transformers plans a model."""
    code = (
        "import sys\n"
        "for name in ('torch', 'triton', 'numba', 'transformers', 'numpy'): sys.modules[name] = None\n"
        "from attn_backends.planning import layer_kinds, load_config, requests\n"
        "print(len([requests(kind) for kind in layer_kinds(load_config('t5-base'))]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"


@pytest.mark.parametrize(
    ("dtype", "stored"), [("float8_e4m3fn", "scaled-fp8-e4m3"), ("int8", "scaled-int8"), ("float16", "dense")]
)
def test_a_quantised_query_has_a_scale(dtype: str, stored: str) -> None:
    """A quantised dtype is stored in its format, in every phase; what a prefill computes of K and V is like q."""
    calls = calls_of("llama-3.1-8b", "full", dtype=dtype)
    scales = "none" if stored == "dense" else "per_tensor"
    for call in calls.values():
        assert fields(call, "dtype", "q_format", "q_granularity") == (dtype, stored, scales)
    assert fields(calls["prefill"], "k_format", "v_format", "v_granularity") == (stored, stored, scales)
    assert fields(calls["decode"], "k_format", "v_format", "v_granularity") == ("dense", "dense", "none")
