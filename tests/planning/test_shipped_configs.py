"""The shipped configs: every kind of layer that they imply, as a table of published numbers."""

import math
from typing import Any

import pytest

from attn_backends.planning import layer_kinds, load_config, requests, shipped
from attn_backends.request import Request

# name -> kinds: (name, layers, q heads, KV heads, width of q and k, width of v, window left, window right, other fields)
NONE = (-1, -1)
SINKS = {"sinks": True}
CAP = {"softcap": 50.0}
CROSS = {"attn_type": "encoder_decoder", "causal": False}
YARN_40 = (0.1 * math.log(40) + 1) ** 2 / math.sqrt(192)
EXPECTED: dict[str, list[tuple[Any, ...]]] = {
    "llama-3.1-8b": [("full", 32, 32, 8, 128, 128, NONE, {"causal": True, "attn_type": "decoder"})],
    "qwen2.5-7b": [("full", 28, 28, 4, 128, 128, NONE, {})],
    "qwen3-0.6b": [("full", 28, 16, 8, 128, 128, NONE, {})],
    "mixtral-8x7b": [("full", 32, 32, 8, 128, 128, NONE, {})],
    "mistral-7b-v0.1": [("sliding 4096", 32, 32, 8, 128, 128, (4095, -1), {})],
    "gemma-2-9b-it": [
        ("sliding 4096", 21, 16, 8, 256, 256, (4095, -1), {**CAP, "softmax_scale": None}),
        ("full", 21, 16, 8, 256, 256, NONE, CAP),
    ],
    "gemma-2-27b-it": [
        ("sliding 4096", 23, 32, 16, 128, 128, (4095, -1), {**CAP, "softmax_scale": 1 / 12}),
        ("full", 23, 32, 16, 128, 128, NONE, {**CAP, "softmax_scale": 1 / 12}),
    ],
    "gemma-3-1b-it": [
        ("sliding 512", 22, 4, 1, 256, 256, (511, -1), {"softcap": None}),
        ("full", 4, 4, 1, 256, 256, NONE, {}),
    ],
    "gemma-3-27b-it": [
        ("sliding 1024", 52, 32, 16, 128, 128, (1023, -1), {"softmax_scale": 168**-0.5}),
        ("full", 10, 32, 16, 128, 128, NONE, {"softmax_scale": 168**-0.5}),
        ("vision", 27, 16, 16, 72, 72, NONE, {"tokens": 4096, "causal": False, "attn_type": "encoder_only"}),
    ],
    "gpt-oss-20b": [
        ("sliding 128", 12, 64, 8, 64, 64, (127, -1), SINKS),
        ("full", 12, 64, 8, 64, 64, NONE, SINKS),
    ],
    "deepseek-v3": [("mla", 61, 128, 128, 192, 128, NONE, {"latent": (576, 512), "softmax_scale": YARN_40})],
    "deepseek-v2-lite": [("mla", 27, 16, 16, 192, 128, NONE, {"latent": (576, 512)})],
    "phi-3-mini-4k": [("sliding 2047", 32, 32, 32, 96, 96, (2046, -1), {})],
    "phi-2": [("full", 32, 32, 32, 80, 80, NONE, {"dtype": "float16"})],
    "granite-3.1-8b": [("full", 40, 32, 8, 128, 128, NONE, {"softmax_scale": 0.0078125})],
    "bloom-7b1": [("full", 30, 32, 32, 128, 128, NONE, {"alibi": True})],
    "mpt-7b": [("full", 32, 32, 32, 128, 128, NONE, {"alibi": True})],
    "falcon-7b": [("full", 32, 71, 1, 64, 64, NONE, {"alibi": False})],
    "gpt2": [("full", 12, 12, 12, 64, 64, NONE, {"dropout_p": 0.1, "max_positions": 1024})],
    "bert-base": [("encoder", 12, 12, 12, 64, 64, NONE, {"attn_type": "encoder_only", "causal": False})],
    "modernbert-base": [
        ("encoder", 8, 12, 12, 64, 64, NONE, {"causal": False}),
        ("encoder local 128", 14, 12, 12, 64, 64, (64, 64), {"causal": False}),
    ],
    "longformer-base-4096": [
        ("encoder local 512", 12, 12, 12, 64, 64, (256, 256), {"mask_beyond": None}),
        ("encoder local 512 with global tokens", 12, 12, 12, 64, 64, NONE, {"mask_beyond": 0}),
    ],
    "t5-base": [
        ("encoder", 12, 12, 12, 64, 64, NONE, {"bias": True, "softmax_scale": 1.0, "attn_type": "encoder"}),
        ("decoder", 12, 12, 12, 64, 64, NONE, {"bias": True, "softmax_scale": 1.0, "causal": True}),
        ("cross", 12, 12, 12, 64, 64, NONE, {**CROSS, "bias": False, "softmax_scale": 1.0, "key_tokens": 512}),
    ],
    "bart-large-cnn": [
        ("encoder", 12, 16, 16, 64, 64, NONE, {"causal": False}),
        ("decoder", 12, 16, 16, 64, 64, NONE, {"causal": True}),
        ("cross", 12, 16, 16, 64, 64, NONE, CROSS),
    ],
    "whisper-large-v3": [
        ("encoder", 32, 20, 20, 64, 64, NONE, {"max_positions": 1500}),
        ("decoder", 32, 20, 20, 64, 64, NONE, {"max_positions": 448}),
        ("cross", 32, 20, 20, 64, 64, NONE, {**CROSS, "key_tokens": 1500}),
    ],
    "siglip-so400m": [("vision", 27, 16, 16, 72, 72, NONE, {"tokens": 729})],
    "clip-vit-large-patch14": [
        ("full", 12, 12, 12, 64, 64, NONE, {"causal": True, "cached": False}),
        ("vision", 24, 16, 16, 64, 64, NONE, {"tokens": 256, "dtype": "float32"}),
    ],
    "qwen2.5-vl-7b": [
        ("full", 28, 28, 4, 128, 128, NONE, {"causal": True}),
        ("vision window 64", 28, 16, 16, 80, 80, NONE, {"tokens": 64, "packed": True}),
        ("vision", 4, 16, 16, 80, 80, NONE, {"causal": False}),
    ],
    "hubert-xlarge": [("audio", 48, 16, 16, 80, 80, NONE, {"causal": False})],
    "sd3-medium": [("joint", 24, 24, 24, 64, 64, NONE, {"tokens": 4096 + 512, "causal": False})],
    "flux.1-dev": [("joint", 57, 24, 24, 128, 128, NONE, {"causal": False, "cached": False})],
    "pixart-sigma-1024": [
        ("self", 28, 16, 16, 72, 72, NONE, {"tokens": 4096}),
        ("cross", 28, 16, 16, 72, 72, NONE, {**CROSS, "cached": False, "key_tokens": 512}),
    ],
}


def test_every_shipped_config_has_an_expected_answer() -> None:
    """The table below misses none, and there are enough."""
    assert set(shipped()) == set(EXPECTED)
    assert len(EXPECTED) >= 18


@pytest.mark.parametrize("name", EXPECTED)
def test_kinds_are_those_published(name: str) -> None:
    """Kinds, how many layers, heads, widths, windows and features."""
    kinds = layer_kinds(load_config(name))
    assert [kind.name for kind in kinds] == [row[0] for row in EXPECTED[name]]
    for kind, (_name, count, q, kv, dim_qk, dim_v, window, others) in zip(kinds, EXPECTED[name], strict=True):
        heads = (kind.count, kind.num_q_heads, kind.num_kv_heads, kind.head_dim_qk, kind.head_dim_v)
        assert heads == (count, q, kv, dim_qk, dim_v)
        assert (kind.window_left, kind.window_right) == window
        got = {field: getattr(kind, field) for field in others}
        assert got == {key: pytest.approx(want) if type(want) is float else want for key, want in others.items()}


@pytest.mark.parametrize("name", EXPECTED)
def test_features_that_nobody_stated_are_off(name: str) -> None:
    """No sinks, ALiBi, bias, cap or custom scale appears where the table expects none."""
    neutral = {"sinks": False, "alibi": False, "bias": False, "softcap": None}
    for kind, row in zip(layer_kinds(load_config(name)), EXPECTED[name], strict=True):
        assert {field: getattr(kind, field) for field in neutral if field not in row[-1]} == {
            field: value for field, value in neutral.items() if field not in row[-1]
        }
        if name != "deepseek-v2-lite":
            assert (kind.softmax_scale is not None) == (row[-1].get("softmax_scale") is not None)


@pytest.mark.parametrize("name", EXPECTED)
def test_every_request_is_legal_and_survives_json(name: str) -> None:
    """Request checks every field; whoever generates has four phases, the others two."""
    for kind in layer_kinds(load_config(name)):
        calls = requests(kind)
        phases = ["prefill", "append", "decode", "training"] if kind.cached else ["prefill", "training"]
        assert [call.phase for call in calls] == phases
        for call in calls:
            assert Request.from_json(call.request.to_json()) == call.request
            assert call.request.alignment == 16
            assert call.request.needs_backward == (call.phase == "training")


@pytest.mark.parametrize("name", EXPECTED)
def test_nothing_that_looks_like_attention_is_left_unread(name: str) -> None:
    """A shipped config has no key that the reader does not understand."""
    assert not [note for kind in layer_kinds(load_config(name)) for note in kind.notes if note.startswith("not read")]
