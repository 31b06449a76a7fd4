"""Structure, not names: renamed models, other spellings and configs that nobody shipped."""

from typing import Any

import pytest

from attn_backends.planning import LayerKind, layer_kinds, load_config, shipped

BASE = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 6, "vocab_size": 1000}
MLA = {"kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 96}
T5_LIKE = {"is_encoder_decoder": True, "d_model": 512, "d_kv": 128, "num_heads": 6, "num_layers": 8}
TOWER = {"hidden_size": 640, "num_attention_heads": 10, "num_hidden_layers": 3, "image_size": 280, "patch_size": 14}


def kinds_of(**config: Any) -> dict[str, LayerKind]:
    return {kind.name: kind for kind in layer_kinds(config)}


def counts(**config: Any) -> dict[str, int]:
    return {name: kind.count for name, kind in kinds_of(**config).items()}


def renamed(config: dict[str, Any], name: str) -> dict[str, Any]:
    """The config with another model's name wherever a name may stand, in every nested dict."""
    inner = {key: renamed(value, name) if isinstance(value, dict) else value for key, value in config.items()}
    return {**inner, "model_type": name, "architectures": [name], "_source": name, "_class_name": name}


@pytest.mark.parametrize("name", shipped())
@pytest.mark.parametrize("alias", ["bert", "llama", "gpt_oss", "t5", "never_heard_of"])
def test_a_renamed_model_gives_the_same_answer(name: str, alias: str) -> None:
    """`model_type`, `architectures` and `_source` change nothing, also when they lie."""
    config = load_config(name)
    assert layer_kinds(renamed(config, alias)) == layer_kinds(config)


@pytest.mark.parametrize(
    "spelling",
    [
        {"num_attention_heads": 8, "hidden_size": 512, "num_hidden_layers": 6, "max_position_embeddings": 700},
        {"n_head": 8, "n_embd": 512, "n_layer": 6, "n_positions": 700},
        {"n_heads": 8, "d_model": 512, "n_layers": 6, "max_seq_len": 700},
        {"num_heads": 8, "dim": 512, "num_layers": 6, "seq_length": 700},
        {"num_heads": 8, "head_dim": 64, "num_blocks": 6, "context_length": 700},
    ],
    ids=lambda spelling: next(iter(spelling)),
)
def test_spellings_of_one_structure_agree(spelling: dict[str, int]) -> None:
    """The same numbers under other words are the same kind of layer."""
    want = layer_kinds({**BASE, "max_position_embeddings": 700})
    assert layer_kinds({**spelling, "vocab_size": 1000}) == want


@pytest.mark.parametrize(
    ("keys", "kv_heads"),
    [
        ({}, 8),
        ({"num_key_value_heads": 2}, 2),
        ({"num_key_value_heads": None}, 8),
        ({"n_head_kv": 4}, 4),
        ({"multi_query": True}, 1),
        ({"multi_query": True, "num_kv_heads": 8}, 1),
        ({"multi_query": True, "num_kv_heads": 8, "new_decoder_architecture": True}, 8),
        ({"multi_query_attention": True, "multi_query_group_num": 2}, 2),
        ({"attn_config": {"kv_n_heads": 4}}, 4),
    ],
)
def test_kv_heads(keys: dict[str, Any], kv_heads: int) -> None:
    """Grouped, multi-query, or one per query head."""
    assert kinds_of(**BASE, **keys)["full"].num_kv_heads == kv_heads


@pytest.mark.parametrize(
    ("keys", "want"),
    [
        ({"sliding_window": 100}, {"sliding 100": 6}),
        ({"sliding_window": None}, {"full": 6}),
        ({"sliding_window": 100, "use_sliding_window": False}, {"full": 6}),
        ({"sliding_window": 100, "use_sliding_window": True, "max_window_layers": 4}, {"full": 4, "sliding 100": 2}),
        ({"sliding_window": 100, "sliding_window_pattern": 3}, {"sliding 100": 4, "full": 2}),
        ({"sliding_window": 100, "sliding_window_pattern": "LLG"}, {"sliding 100": 4, "full": 2}),
        ({"sliding_window": 100, "attn_logit_softcapping": 30.0}, {"sliding 100": 3, "full": 3}),
        ({"sliding_window": [None, 100, 50]}, {"full": 2, "sliding 100": 2, "sliding 50": 2}),
        (
            {"sliding_window": 100, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]},
            {"sliding 100": 5, "full": 1},
        ),
        ({"window_size": 100, "attention_types": [[["global", "local"], 3]]}, {"full": 3, "sliding 100": 3}),
        ({"sliding_window": 100, "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0]}, {"full": 2, "sliding 100": 4}),
        ({"attention_chunk_size": 64, "no_rope_layers": [1, 1, 0, 1, 1, 0]}, {"chunked 64": 4, "full": 2}),
        ({"attention_chunk_size": 64, "no_rope_layer_interval": 3}, {"chunked 64": 4, "full": 2}),
        ({"layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2}, {"full": 2}),
        ({"full_attention_interval": 3}, {"full": 2}),
        ({"attn_layer_period": 3, "attn_layer_offset": 1}, {"full": 2}),
        ({"hybrid_override_pattern": "M-*M-*"}, {"full": 2}),
        ({"block_types": ["recurrent", "recurrent", "attention"], "attention_window_size": 100}, {"sliding 100": 2}),
        ({"cross_attention_layers": [1, 4]}, {"full": 4, "cross": 2}),
    ],
)
def test_which_layers_see_what(keys: dict[str, Any], want: dict[str, int]) -> None:
    """Every way in which a config says which layers are windowed, chunked, crossing, or no attention at all."""
    assert counts(**BASE, **keys) == want


@pytest.mark.parametrize(
    ("keys", "causal", "attn_type"),
    [
        ({}, True, "decoder"),
        ({"use_cache": True}, True, "decoder"),
        ({"is_decoder": False, "num_key_value_heads": 2}, True, "decoder"),
        ({"type_vocab_size": 2, "use_cache": True}, False, "encoder_only"),
        ({"type_vocab_size": 2, "is_decoder": True}, True, "decoder"),
        ({"mask_token_id": 4}, False, "encoder_only"),
        ({"is_causal": False}, False, "encoder_only"),
        ({"type_vocab_size": 2, "is_causal": True}, True, "decoder"),
        ({"use_bidirectional_attention": True}, False, "encoder_only"),
    ],
)
def test_decoder_or_encoder(keys: dict[str, Any], causal: bool, attn_type: str) -> None:
    """What is stated goes before what only encoders have; `use_cache` and `is_decoder: false` prove nothing."""
    (kind,) = layer_kinds({**BASE, **keys})
    assert (kind.causal, kind.attn_type) == (causal, attn_type)


def test_two_sided_windows_are_halves() -> None:
    """A window of an encoder reaches half of it to either side."""
    kind = kinds_of(**BASE, sliding_window=100, use_bidirectional_attention=True)["encoder local 100"]
    assert (kind.window_left, kind.window_right, kind.causal) == (50, 50, False)


@pytest.mark.parametrize(
    ("keys", "scale"),
    [
        ({}, None),
        ({"query_pre_attn_scalar": 64}, None),
        ({"query_pre_attn_scalar": 100}, 0.1),
        ({"attention_multiplier": 0.125}, None),
        ({"attention_multiplier": 0.25}, 0.25),
        ({"attn_config": {"softmax_scale": 0.5}}, 0.5),
        ({"attn_temperature_tuning": True, "attn_scale": 0.1}, None),
        ({"scale_attn_weights": False}, 1.0),
        ({"mup_scale_qk_dot_by_d": True}, 1 / 64),
        ({"rope_scaling": {"type": "yarn", "factor": 40, "mscale_all_dim": 1.0}}, None),
    ],
)
def test_scale_is_custom_only_where_it_differs(keys: dict[str, Any], scale: float | None) -> None:
    """1/sqrt(head_dim) is no custom scale, however it is spelled; YaRN scales the softmax under MLA alone."""
    assert kinds_of(**BASE, **keys)["full"].softmax_scale == (None if scale is None else pytest.approx(scale))


@pytest.mark.parametrize(
    ("keys", "sinks"),
    [
        ({"attention_sinks": True}, {"sliding 100": True, "full": True}),
        ({"use_sinks": True}, {"sliding 100": True, "full": True}),
        ({"swiglu_limit": 7.0}, {"sliding 100": True, "full": True}),
        ({"swiglu_limit": 7.0, "attention_sinks": False}, {"sliding 100": False, "full": False}),
        (
            {"add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False},
            {"sliding 100": True, "full": False},
        ),
        ({}, {"sliding 100": False, "full": False}),
    ],
)
def test_sinks(keys: dict[str, Any], sinks: dict[str, bool]) -> None:
    """Stated for all, for windowed and full layers apart, or inferred; a stated false wins."""
    kinds = kinds_of(**BASE, **keys, sliding_window=100, sliding_window_pattern=2)
    assert {name: kind.sinks for name, kind in kinds.items()} == sinks


def test_inferred_features_are_noted() -> None:
    """What the config does not say outright is said in the notes."""
    kinds = kinds_of(**BASE, swiglu_limit=7.0, sliding_window=100, sliding_window_pattern=2)
    assert any("sinks inferred" in note for note in kinds["full"].notes)


def test_attention_keys_that_nobody_knows_are_noted() -> None:
    """A key that looks like attention structure is never passed over in silence."""
    notes = kinds_of(**BASE, superior_sparse_attention_mode="on", output_attentions=True)["full"].notes
    assert notes == ("not read: superior_sparse_attention_mode",)


@pytest.mark.parametrize(
    "keys", [{"alibi": True}, {"attn_config": {"alibi": True}}, {"position_embedding_type": "alibi"}]
)
def test_alibi(keys: dict[str, Any]) -> None:
    """A flag, a nested flag, or a kind of positions; the same in an encoder."""
    assert kinds_of(**BASE, **keys)["full"].alibi
    assert kinds_of(**BASE, **keys, type_vocab_size=2)["encoder"].alibi


def test_windowed_layers_may_have_heads_of_their_own() -> None:
    """`swa_*` and `global_*` keys belong to one kind of layer."""
    own = {"swa_num_key_value_heads": 4, "swa_head_dim": 96, "global_head_dim": 256, "num_global_key_value_heads": 2}
    kinds = kinds_of(**BASE, **own, sliding_window=100, sliding_window_pattern=2)
    assert (kinds["sliding 100"].num_kv_heads, kinds["sliding 100"].head_dim_qk) == (4, 96)
    assert (kinds["full"].num_kv_heads, kinds["full"].head_dim_qk) == (2, 256)


def test_compressed_kv_is_read_from_its_widths() -> None:
    """MLA of unseen widths; a `head_dim` beside them does not matter."""
    kind = kinds_of(**BASE, **MLA, head_dim=32)["mla"]
    assert (kind.head_dim_qk, kind.head_dim_v, kind.latent, kind.num_kv_heads) == (96, 96, (288, 256), 8)


def test_value_heads_may_be_narrower_without_compression() -> None:
    """`head_dim` and `v_head_dim` alone are ordinary attention with two widths."""
    kind = kinds_of(**BASE, head_dim=192, v_head_dim=128)["full"]
    assert (kind.head_dim_qk, kind.head_dim_v, kind.latent) == (192, 128, None)


def test_encoder_decoder_of_another_shape() -> None:
    """Layers of both sides need no flag, and each side has its own heads."""
    sides = {"encoder_layers": 4, "encoder_attention_heads": 8, "decoder_layers": 2, "decoder_attention_heads": 16}
    kinds = kinds_of(d_model=512, **sides, vocab_size=9)
    assert {name: (kind.count, kind.num_q_heads) for name, kind in kinds.items()} == {
        "encoder": (4, 8),
        "decoder": (2, 16),
        "cross": (2, 16),
    }


def test_unscaled_relative_bias() -> None:
    """d_kv with relative buckets: bias in both stacks, none across, and no scaling; the width need not divide."""
    kinds = kinds_of(**T5_LIKE, relative_attention_num_buckets=32)
    assert {name: kind.bias for name, kind in kinds.items()} == {"encoder": True, "decoder": True, "cross": False}
    assert {kind.softmax_scale for kind in kinds.values()} == {1.0}
    assert {kind.head_dim_qk for kind in kinds.values()} == {128}


def test_nested_encoder_and_decoder() -> None:
    """Two nested stacks are an encoder-decoder; the keys of the cross attention are the image's tokens."""
    kinds = kinds_of(is_encoder_decoder=True, encoder={**TOWER}, decoder={**BASE, "max_position_embeddings": 256})
    assert set(kinds) == {"encoder", "decoder", "cross"}
    assert (kinds["encoder"].attn_type, kinds["cross"].attn_type) == ("encoder", "encoder_decoder")


def test_towers_under_any_key() -> None:
    """Nested stacks are found by their heads, and told apart by what they read."""
    kinds = kinds_of(llm_config=BASE, visual_part={**TOWER}, projector_config={"hidden_size": 3})
    assert set(kinds) == {"full", "vision"}
    assert (kinds["vision"].tokens, kinds["vision"].causal) == (400, False)
    assert kinds_of(**BASE, vision_config=TOWER).keys() == {"full", "vision"}


def test_towers_that_share_a_name_are_told_apart() -> None:
    """Two text stacks keep their keys in their names."""
    assert set(kinds_of(thinker_config={"text_config": BASE}, talker_config={"text_config": BASE})) == {
        "text full",
        "text full #2",
    }


def test_the_type_of_a_nested_stack_is_that_of_the_whole() -> None:
    """`torch_dtype` stands at the top; types of stored weights are not types of q."""
    assert kinds_of(torch_dtype="torch.float16", text_config=BASE)["full"].dtype == "float16"
    assert kinds_of(**BASE, dtype="float8_e4m3fn")["full"].dtype == "bfloat16"


def test_diffusion_of_another_shape() -> None:
    """Latents with heads of their own are a diffusion transformer; text joins or stands across."""
    latents = {"num_attention_heads": 6, "attention_head_dim": 96, "num_layers": 5, "sample_size": [32, 64]}
    assert kinds_of(**latents, patch_size=2)["self"].tokens == 16 * 32
    assert set(kinds_of(**latents, patch_size=[1, 2, 2], cross_attention_dim=768)) == {"self", "cross"}
    assert set(kinds_of(**latents, patch_size=2, joint_attention_dim=768)) == {"joint"}
