"""The words that model configs use for one and the same structure, as data: the canonical name first.

A new spelling is one more word in one of these tuples. Names of models stand nowhere here: keys in `NAMES` are taken
out of a config before anything is read. Data only; `planning` alone imports it.
"""

from __future__ import annotations

Aliases = tuple[str, ...]

# What a model is called. Never read, and never offered as the nearest key.
NAMES = frozenset(
    {"model_type", "architectures", "auto_map", "_source", "_name_or_path", "_class_name", "name_or_path", "name"}
)

# Dicts that only group attention keys of the model around them.
GROUPS = ("attn_config", "attention_config", "self_attention", "attention", "attn")

HEADS: Aliases = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "num_q_heads", "num_query_heads",
    "nhead",
)  # fmt: skip
ENCODER_HEADS: Aliases = ("encoder_attention_heads", "num_encoder_attention_heads", "encoder_num_heads", *HEADS)
DECODER_HEADS: Aliases = ("decoder_attention_heads", "num_decoder_attention_heads", "decoder_num_heads", *HEADS)
KV_HEADS: Aliases = (
    "num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "kv_n_heads", "n_kv_head",
    "multi_query_group_num", "num_query_groups", "num_attention_groups", "kv_heads",
)  # fmt: skip
ENCODER_KV_HEADS: Aliases = ("encoder_num_key_value_heads", *KV_HEADS)
DECODER_KV_HEADS: Aliases = ("decoder_num_key_value_heads", *KV_HEADS)
MULTI_QUERY: Aliases = ("multi_query", "multi_query_attention")
GROUPED_AFTER_ALL: Aliases = ("new_decoder_architecture",)

WIDTH: Aliases = ("hidden_size", "n_embd", "n_embed", "d_model", "dim", "model_dim", "embed_dim")
VISION_WIDTH: Aliases = ("embed_dim", *WIDTH)
HEAD_DIM: Aliases = (
    "head_dim", "d_kv", "attention_head_dim", "kv_channels", "attn_head_dim", "head_size", "size_per_head", "d_head",
    "qk_head_dim", "attention_key_size",
)  # fmt: skip
HEAD_DIM_V: Aliases = ("v_head_dim", "value_head_dim", "attention_value_size")
NOPE_DIM: Aliases = ("qk_nope_head_dim",)
ROPE_DIM: Aliases = ("qk_rope_head_dim",)
KV_RANK: Aliases = ("kv_lora_rank",)

LAYERS: Aliases = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "num_blocks", "num_transformer_layers",
)  # fmt: skip
MORE_LAYERS: Aliases = ("num_single_layers",)  # further blocks with the same attention (joint, then single stream)
ENCODER_LAYERS: Aliases = ("encoder_layers", "num_encoder_layers", "n_encoder_layers", *LAYERS)
DECODER_LAYERS: Aliases = ("decoder_layers", "num_decoder_layers", "n_decoder_layers", *LAYERS)
POSITIONS: Aliases = (
    "max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length", "max_seq_length",
    "max_sequence_length", "model_max_length", "context_length", "seq_len",
)  # fmt: skip
ENCODER_POSITIONS: Aliases = ("max_source_positions", "max_encoder_position_embeddings", *POSITIONS)
DECODER_POSITIONS: Aliases = ("max_target_positions", "max_decoder_position_embeddings", *POSITIONS)

# What an error calls the words of one side; elsewhere the first word is the canonical one.
CANONICAL: dict[Aliases, str] = {
    **dict.fromkeys((ENCODER_HEADS, DECODER_HEADS), HEADS[0]),
    **dict.fromkeys((ENCODER_LAYERS, DECODER_LAYERS), LAYERS[0]),
}

SOFTCAP: Aliases = (
    "attn_logit_softcapping", "attn_logit_softcap", "attention_logit_softcapping", "attention_logits_soft_cap",
    "attn_logits_soft_cap", "attn_softcap", "attention_logit_cap", "attn_logit_cap",
)  # fmt: skip
SCALE: Aliases = ("softmax_scale", "attention_multiplier", "attention_scale")
SCALE_ROOT_OF: Aliases = ("query_pre_attn_scalar",)
SCALE_BY_WIDTH: Aliases = ("mup_scale_qk_dot_by_d", "scale_qk_dot_by_d")
SCALED: Aliases = ("scale_attn_weights", "scale_attn")
SCALE_BY_LAYER: Aliases = ("scale_attn_by_inverse_layer_idx",)
ROPE_SCALING: Aliases = ("rope_scaling", "rope_parameters")
DROPOUT: Aliases = (
    "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "attn_dropout", "attention_dropout_prob",
    "attention_dropout_rate", "dropout_rate",
)  # fmt: skip
DTYPE: Aliases = ("torch_dtype", "dtype", "params_dtype")  # q is of this type where it is one of FLOATS
FLOATS = ("float16", "bfloat16", "float32", "float64")
WEIGHT_ONLY = ("auto", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int4")

SINKS: Aliases = (
    "attention_sinks", "attn_sinks", "use_sinks", "sinks", "attention_sink", "attn_sink", "use_attention_sinks",
    "use_attention_sink", "attention_sink_bias", "add_attention_sink_bias", "learnable_sink", "enable_attention_sink",
)  # fmt: skip
SINKS_SLIDING: Aliases = ("add_swa_attention_sink_bias",)
SINKS_FULL: Aliases = ("add_full_attention_sink_bias",)
SINKS_HINT: Aliases = ("swiglu_limit",)  # see `features.py`: read only where windowed layers are mixed in
ALIBI: Aliases = ("alibi", "use_alibi")
ALIBI_HINT: Aliases = ("offset_alibi", "slow_but_exact")
POSITION_KIND: Aliases = (
    "position_embedding_type", "position_encoding_type", "position_encoding", "pos_emb_type", "pe_type",
    "positional_embedding",
)  # fmt: skip
RELATIVE_BUCKETS: Aliases = ("relative_attention_num_buckets", "num_buckets", "rel_pos_bins", "rpe_bins")
DISENTANGLED: Aliases = ("pos_att_type",)
UNSCALED_HEAD: Aliases = ("d_kv",)  # with relative buckets: scores are not scaled
RELATIVE: Aliases = (
    "relative_attention", "use_relative_position_bias", "use_shared_relative_position_bias",
    "has_relative_attention_bias", "use_rel_pos",
)  # fmt: skip

ENCODER_DECODER: Aliases = ("is_encoder_decoder",)
DECODER: Aliases = ("is_decoder",)
CAUSAL: Aliases = ("is_causal", "causal", "causal_attention", "use_causal_mask", "causal_mask")
BIDIRECTIONAL: Aliases = ("use_bidirectional_attention", "bidirectional", "bidirectional_attention")
CROSS: Aliases = ("add_cross_attention", "cross_attention_hidden_size")
CROSS_LAYERS: Aliases = ("cross_attention_layers",)
# Keys that only encoders have: segments, a mask or class token, a pooling or classification head, two-sided windows.
ENCODER_SIGNS: Aliases = (
    "type_vocab_size", "mask_token_id", "cls_token_id", "sep_token_id", "attention_window", "local_attention",
    "classifier_pooling", "sinusoidal_pos_embds", "seq_classif_dropout",
)  # fmt: skip
VISION_SIGNS: Aliases = ("image_size", "patch_size", "num_channels", "in_chans", "tubelet_size", "spatial_merge_size")
AUDIO_SIGNS: Aliases = ("num_mel_bins", "num_feat_extract_layers", "conv_stride")
# Vocabularies and caches belong to text; a config with one of these is no vision tower of its own.
TEXT_SIGNS: Aliases = ("vocab_size", "padded_vocab_size", "use_cache")
LATENT_IMAGE_SIGNS: Aliases = ("sample_size", "in_channels", "out_channels")  # with attention_head_dim: diffusion
LATENT_IMAGE_HEAD: Aliases = ("attention_head_dim",)
CONTRASTIVE: Aliases = ("logit_scale_init_value",)
JOINT: Aliases = ("joint_attention_dim",)
CROSS_WIDTH: Aliases = ("cross_attention_dim", "text_dim")

IMAGE: Aliases = ("image_size", "sample_size", "force_image_size", "img_size")
PATCH: Aliases = ("patch_size",)
FRAMES: Aliases = ("num_frames", "sample_frames")
TUBE: Aliases = ("tubelet_size", "temporal_patch_size", "patch_size_t")
REGISTERS: Aliases = ("num_register_tokens",)
CLASS_TOKEN: Aliases = ("use_cls_token", "use_class_token", "class_token")
PATCH_WINDOW: Aliases = ("window_size",)
FULL_IN_PIXELS: Aliases = ("fullatt_block_indexes",)  # the other layers see windows of window_size pixels
FULL_IN_PATCHES: Aliases = ("global_attn_indexes",)  # the other layers see windows of window_size patches

WINDOW: Aliases = ("sliding_window", "sliding_window_size", "attention_window_size", "local_window_size")
WINDOW_OF_WORD: Aliases = (*WINDOW, "local_attention", "window_size")  # only where a layer is said to be windowed
WINDOW_ON: Aliases = ("use_sliding_window",)
WINDOW_FROM_LAYER: Aliases = ("max_window_layers",)
WINDOW_PATTERN: Aliases = ("sliding_window_pattern", "_sliding_window_pattern", "layer_switch")
LAYER_WORDS: Aliases = ("layer_types", "layers_block_type", "attention_layers")  # one word per layer
LAYER_CYCLE: Aliases = ("block_types", "_block_types")  # words that repeat
LAYER_WORD_RUNS: Aliases = ("attention_types",)  # [[["global", "local"], 12]]
LAYER_BITS: Aliases = ("hybrid_layer_pattern",)  # 1 = windowed
LAYER_LETTERS: Aliases = ("hybrid_override_pattern",)  # "*" = attention
ATTENTION_LIST: Aliases = ("attn_type_list",)  # 1 = softmax attention
ATTENTION_INDICES: Aliases = ("attn_layer_indices",)
ATTENTION_PERIOD: Aliases = ("attn_layer_period",)
ATTENTION_OFFSET: Aliases = ("attn_layer_offset",)
FULL_INTERVAL: Aliases = ("full_attention_interval",)
GLOBAL_EVERY: Aliases = ("global_attn_every_n_layers",)
LOCAL: Aliases = ("local_attention",)
WINDOW_PER_LAYER: Aliases = ("attention_window",)
CHUNK: Aliases = ("attention_chunk_size",)
CHUNK_FLAGS: Aliases = ("no_rope_layers",)  # 1 = rotary and chunked, 0 = full
CHUNK_INTERVAL: Aliases = ("no_rope_layer_interval",)
SPARSE_KIND: Aliases = ("attention_type",)
SPARSE_BLOCK: Aliases = ("block_size",)
TOP_KEYS: Aliases = ("index_topk",)

# Where windowed and full layers of one model have different heads.
VARIANTS: dict[str, dict[str, Aliases]] = {
    "sliding": {
        "heads": ("swa_num_attention_heads",),
        "kv_heads": ("swa_num_key_value_heads",),
        "head_dim": ("swa_head_dim",),
        "head_dim_v": ("swa_v_head_dim",),
    },
    "full": {"kv_heads": ("num_global_key_value_heads",), "head_dim": ("global_head_dim",)},
}

# What the words of LAYER_WORDS mean, by the first part that they contain; "any" obeys the window of the model, if any.
WORD_MEANINGS: tuple[tuple[str, str], ...] = (
    ("linear", "none"), ("mamba", "none"), ("recurrent", "none"), ("conv", "none"), ("ssm", "none"), ("delta", "none"),
    ("rwkv", "none"), ("lightning", "none"), ("mlp", "none"), ("moe", "none"),
    ("sliding", "sliding"), ("local", "sliding"), ("window", "sliding"), ("swa", "sliding"),
    ("chunk", "chunked"), ("cross", "cross"),
    ("full", "full"), ("global", "full"), ("hybrid", "any"), ("attention", "any"), ("attn", "any"),
)  # fmt: skip

# Keys whose dict is a tower of its own, and what kind, by the first part that the key contains.
TOWER_WORDS: tuple[tuple[str, str], ...] = (
    ("vision", "vision"), ("visual", "vision"), ("vit_", "vision"), ("image_encoder", "vision"),
    ("audio", "audio"), ("speech", "audio"), ("qformer", "bridge"),
    ("text_encoder", "encoder"), ("encoder", "encoder"), ("decoder", "decoder"),
    ("text", "text"), ("llm", "text"), ("language", "text"), ("thinker", "text"), ("talker", "text"),
)  # fmt: skip

# Look like attention structure and do not change which kernel may run.
HARMLESS = frozenset(
    {
        "attention_bias", "attention_out_bias", "attention_in_bias", "attention_softmax_in_fp32",
        "masked_softmax_fusion", "final_logit_softcapping",
        "attn_implementation", "_attn_implementation", "_attn_implementation_internal", "attn_impl", "attn_type",
        "attn_uses_sequence_id", "alibi_bias_max", "use_attention_mask", "use_qk_norm", "chunk_size_feed_forward",
        "output_attentions", "parallel_attn", "reorder_and_upcast_attn", "qkv_bias", "relative_attention_max_distance",
        "max_relative_positions", "attn_pdrop", "attn_bias", "attention_probs_dropout_prob",
        "max_bucket_distance", "attention_layer_norm", "use_flash_attn", "cross_attention_norm", "attention_qkv_bias",
        # factors on q or v outside of the call, long-context temperature among them
        "attn_scale", "attn_temperature_tuning", "attention_value_scale", "cross_attn_norm",
        "index_n_heads", "qk_norm", "attn_output_gate", "attn_dropout_prob",
    }
)  # fmt: skip

KNOWN = frozenset(
    word for value in list(globals().values()) if isinstance(value, tuple) for word in value if isinstance(word, str)
) | {word for variant in VARIANTS.values() for names in variant.values() for word in names}
