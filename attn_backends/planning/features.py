"""`Features`: what changes the scores of a stack beside masks and windows: cap, sinks, ALiBi, bias; and scale.

Some models have a feature that their config never states; where other structure gives it away, it is inferred and
noted. What nothing gives away stays out: an unscaled softmax, sinks or ALiBi that live in the model's code alone.
"""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from attn_backends.planning import aliases as a
from attn_backends.planning.heads import Heads
from attn_backends.planning.section import Section

_ROTARY = ("rope_theta", "rope_scaling", "rope_parameters", "rotary_dim", "rotary_pct")


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Whether a layer has them; `sinks_on` are the variants ("full", "sliding") with sinks."""

    softcap: float | None
    sinks_on: frozenset[str]
    alibi: bool
    bias: bool
    dropout_p: float
    dtype: str


def read_features(section: Section, variants: AbstractSet[str]) -> Features:
    """Everything but the scale, which depends on the heads; `variants` are those that the stack has."""
    dropout = section.number(a.DROPOUT) or 0.0
    if dropout >= 1:
        raise section.wrong("attention_dropout", dropout, "a number in [0, 1)")
    return Features(
        softcap=section.number(a.SOFTCAP) or None,
        sinks_on=_sinks(section, variants),
        alibi=_alibi(section),
        bias=_relative_bias(section),
        dropout_p=dropout,
        dtype=_dtype(section),
    )


def read_scale(section: Section, heads: Heads, layers: int) -> float | None:
    """The softmax scale, or None where it is 1/sqrt(head_dim_qk)."""
    default = 1 / math.sqrt(heads.dim_qk)
    scale = _stated_scale(section, heads, layers)
    if scale is None:
        scale = _inferred_scale(section, heads)
    scale = (default if scale is None else scale) * (_yarn_scale(section) if heads.latent else 1.0)
    return None if math.isclose(scale, default, rel_tol=1e-6) else scale


def _stated_scale(section: Section, heads: Heads, layers: int) -> float | None:
    scale = section.number(a.SCALE)
    if scale is not None:
        return scale
    root_of = section.number(a.SCALE_ROOT_OF)
    if root_of is not None:
        if root_of == 0:
            raise section.wrong(a.SCALE_ROOT_OF[0], root_of, "a number > 0")
        return 1 / math.sqrt(root_of)
    if section.flag(a.SCALE_BY_WIDTH):
        return 1 / heads.dim_qk
    if section.flag(a.SCALED) is False:
        return 1.0
    if section.flag(a.SCALE_BY_LAYER) and layers > 1:
        section.note("the scale is divided by the layer's number; shown for the last layer")
        return 1 / math.sqrt(heads.dim_qk) / layers
    return None


def _inferred_scale(section: Section, heads: Heads) -> float | None:
    if section.has(a.UNSCALED_HEAD) and section.has(a.RELATIVE_BUCKETS):
        section.note("d_kv with relative buckets: scores taken as unscaled")
        return 1.0
    if section.has(a.LAYER_WORD_RUNS):
        section.note("attention_types: scores taken as unscaled")
        return 1.0
    if section.flag(("relative_attention",)) and (found := section.find(a.DISENTANGLED)):
        terms = 1 + sum(kind in str(found[1]).lower() for kind in ("c2p", "p2c"))
        return 1 / math.sqrt(heads.dim_qk * terms)
    return None


def _yarn_scale(section: Section) -> float:
    """Factor on the scale under compressed KV: (0.1 mscale_all_dim ln(factor) + 1)^2 (YaRN, arXiv:2309.00071)."""
    rope = section.table(a.ROPE_SCALING)
    if rope is None:
        return 1.0
    mscale, factor = rope.number(("mscale_all_dim",)) or 0.0, rope.number(("factor",)) or 1.0
    return (0.1 * mscale * math.log(factor) + 1.0) ** 2 if factor > 1 else 1.0


def _sinks(section: Section, variants: AbstractSet[str]) -> frozenset[str]:
    """Stated for all layers, or for windowed and full layers apart, or inferred.

    Models with a clamped gated activation and windowed layers among full ones have sinks that no key of theirs states;
    `attention_sinks: false` overrules that.
    """
    stated = section.flag(a.SINKS)
    apart = {"sliding": section.flag(a.SINKS_SLIDING), "full": section.flag(a.SINKS_FULL)}
    if any(flag is not None for flag in apart.values()):
        return frozenset(variant for variant, flag in apart.items() if flag)
    if stated is None and section.has(a.SINKS_HINT) and len(variants) > 1:
        section.note("sinks inferred from swiglu_limit with windowed layers; attention_sinks = false overrules")
        return frozenset(variants)
    return frozenset(variants) if stated else frozenset()


def _alibi(section: Section) -> bool:
    stated = section.flag(a.ALIBI)
    if stated is not None:
        return stated
    if "alibi" in (section.word(a.POSITION_KIND) or ""):
        return True
    if section.has(a.ALIBI_HINT) and not section.has(_ROTARY):
        section.note("ALiBi inferred: an ALiBi-only key and no rotary positions; alibi = false overrules")
        return True
    return False


def _relative_bias(section: Section) -> bool:
    if any(section.flag((name,)) for name in a.RELATIVE):
        return True
    return section.has(a.RELATIVE_BUCKETS) or (section.word(a.POSITION_KIND) or "").startswith("relative")


def _dtype(section: Section) -> str:
    """The type of q: the checkpoint's, where that is a float type; bfloat16 where only weights are stored smaller."""
    stated = section.inherited(a.DTYPE)
    if not isinstance(stated, str) or (word := stated.lower().removeprefix("torch.")) in a.WEIGHT_ONLY:
        return "bfloat16"
    short = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32", "fp32": "float32"}
    word = short.get(word, word)
    if word not in a.FLOATS:
        raise section.wrong("torch_dtype", stated, "one of " + ", ".join(a.FLOATS))
    return word
