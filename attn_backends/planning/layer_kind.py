"""`LayerKind`: one kind of attention layer of a model, and how many layers are of it. Data only.

Anybody may import this module.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """What the layers of one kind ask for, whatever the phase.

    `name` reads "full", "sliding 4096", "chunked 8192", "mla", "encoder", "encoder local 128", "decoder", "cross",
    "vision", "audio", "joint", "self". Lengths are tokens; None = the config does not say.
    """

    name: str
    count: int
    attn_type: str  # decoder | encoder | encoder_only | encoder_decoder
    causal: bool
    cached: bool  # whether it generates from a KV cache, so that append and decode exist
    num_q_heads: int
    num_kv_heads: int
    head_dim_qk: int
    head_dim_v: int
    latent: tuple[int, int] | None = None  # widths of k and v over a compressed cache, one KV head (MLA)
    window_left: int = -1
    window_right: int = -1
    mask_beyond: int | None = None  # longer keys than this need a bool mask, 0 = always
    block_mask_size: int | None = None
    softmax_scale: float | None = None  # None = 1/sqrt(head_dim_qk)
    softcap: float | None = None
    sinks: bool = False
    alibi: bool = False
    bias: bool = False  # a learned relative bias, a float mask
    dropout_p: float = 0.0  # in training
    dtype: str = "bfloat16"
    max_positions: int | None = None  # longest sequence
    tokens: int | None = None  # length that the structure fixes: patches of an image
    key_tokens: int | None = None  # keys of cross attention
    packed: bool = False  # many short sequences of `tokens` each, packed: windows of an image
    notes: tuple[str, ...] = ()  # what was inferred, and what was not read
