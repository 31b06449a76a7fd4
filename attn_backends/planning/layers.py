"""`layer_kinds`: a model config to its kinds of attention layers. Structure decides; names of models are never read.

Standard library only; whoever plans may import it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from attn_backends.planning import aliases as a
from attn_backends.planning.errors import ConfigError
from attn_backends.planning.features import Features, read_features, read_scale
from attn_backends.planning.heads import (
    DECODER,
    ENCODER,
    VISION,
    Heads,
    read_heads,
    read_layers,
    require_structure,
)
from attn_backends.planning.images import JOINT_TEXT_TOKENS, LATENT_IMAGE_TOKENS, image_tokens, window_tokens
from attn_backends.planning.layer_kind import LayerKind
from attn_backends.planning.roles import stated_causal
from attn_backends.planning.section import Section
from attn_backends.planning.spans import CROSS, FULL, Span, layer_spans
from attn_backends.planning.towers import Tower, find_towers


def layer_kinds(config: Mapping[str, Any]) -> tuple[LayerKind, ...]:
    """The kinds of attention layers of a Hugging Face style config, in order of first appearance.

    Raises ConfigError, naming every missing key and what looks like a misspelling of it, or the key that is not legal.
    """
    root = Section(_checked(config))
    towers = find_towers(root)
    named = [(tower.stem, kind) for tower in towers for kind in _with_notes(tower, root)]
    kinds = _with_key_lengths(_distinct(named))
    if not kinds:
        raise ConfigError("no layer has softmax attention")
    return kinds


def _checked(config: Any) -> Mapping[str, Any]:
    if isinstance(config, Mapping) and all(isinstance(key, str) for key in config):
        return config
    raise ConfigError(f"a config is an object with named keys; got {type(config).__name__}")


def _with_notes(tower: Tower, root: Section) -> list[LayerKind]:
    section = tower.section
    kinds = list(_kinds_of(tower))
    unread = section.unread()
    if unread:
        section.note(f"not read: {', '.join(unread)}")
    notes = tuple(dict.fromkeys((*root.notes, *section.notes)))
    return [replace(kind, notes=notes) for kind in kinds]


def _kinds_of(tower: Tower) -> Iterator[LayerKind]:
    section = tower.section
    if tower.role == "encoder_decoder":
        yield from _encoder(section, "encoder")
        yield from _decoder(section, generates=True, cross=True, keys=section.whole(a.ENCODER_POSITIONS))
    elif tower.role == "decoder":
        stated = section.find(a.CROSS)
        cross = tower.crosses or (stated is not None and bool(stated[1]))
        yield from _decoder(section, generates=tower.generates, cross=cross, keys=None)
    elif tower.role == "diffusion":
        yield from _diffusion(section)
    elif tower.role == "vision":
        yield from _vision(section)
    elif tower.role == "audio":
        yield from _encoder(section, "encoder_only", label="audio")
    else:
        yield from _encoder(section, "encoder" if tower.role == "paired_encoder" else "encoder_only")


def _decoder(section: Section, *, generates: bool, cross: bool, keys: int | None) -> Iterator[LayerKind]:
    require_structure(section, DECODER)
    layers = read_layers(section, DECODER)
    causal = stated_causal(section) is not False
    counts = _counts(section, layers, causal=causal)
    features = read_features(section, {span.variant for span in counts})
    positions = section.whole(DECODER.positions)
    for span, count in counts.items():
        heads = read_heads(section, DECODER, span.variant)
        common = _common(section, heads, features, layers, span, count)
        if span.cross:
            yield _cross(common, positions, keys, cached=generates)
            continue
        label = "mla" + span.label.removeprefix("full") if heads.latent else span.label
        if cross:
            label = "decoder" if span == FULL else f"decoder {span.label}"
        yield LayerKind(
            **common, name=label, attn_type="decoder", causal=causal, cached=generates, max_positions=positions
        )
    if cross:
        heads = read_heads(section, DECODER)
        common = _common(section, heads, features, layers, CROSS, sum(counts.values()))
        yield _cross(common, positions, keys, cached=generates)


def _cross(common: dict[str, Any], positions: int | None, keys: int | None, *, cached: bool) -> LayerKind:
    """Queries of the decoder over the keys of another stack: nothing hidden, no bias, no sinks."""
    plain = {"alibi": False, "bias": False, "sinks": False, "latent": None}
    return LayerKind(
        **{**common, **plain},
        name="cross",
        attn_type="encoder_decoder",
        causal=False,
        cached=cached,
        max_positions=positions,
        key_tokens=keys,
    )


def _encoder(section: Section, attn_type: str, label: str = "encoder") -> Iterator[LayerKind]:
    require_structure(section, ENCODER)
    layers = read_layers(section, ENCODER)
    counts = _counts(section, layers, causal=False)
    features = read_features(section, {span.variant for span in counts})
    fixed: dict[str, Any] = {
        "attn_type": attn_type,
        "causal": False,
        "cached": False,
        "max_positions": section.whole(ENCODER.positions),
    }
    for span, count in counts.items():
        common = _common(section, read_heads(section, ENCODER, span.variant), features, layers, span, count)
        name = label if span == FULL else f"{label} {span.label}"
        yield LayerKind(**common, **fixed, name=name)
        if span.or_global:
            open_to_all = {**common, "window_left": -1, "window_right": -1, "mask_beyond": 0}
            yield LayerKind(**open_to_all, **fixed, name=f"{name} with global tokens")


def _vision(section: Section) -> Iterator[LayerKind]:
    """Full over the patches of an image; or inside windows of it, packed, but for the layers that are listed."""
    require_structure(section, VISION)
    layers = read_layers(section, VISION)
    features = read_features(section, {"full"})
    common = _common(section, read_heads(section, VISION), features, layers, FULL, layers)
    fixed: dict[str, Any] = {"attn_type": "encoder_only", "causal": False, "cached": False}
    window = window_tokens(section)
    full = len(set(section.entries((*a.FULL_IN_PIXELS, *a.FULL_IN_PATCHES)) or ())) if window else layers
    tokens, positions = image_tokens(section), section.whole(VISION.positions)
    if window and full < layers:
        inside = {**common, "count": layers - full}
        yield LayerKind(**inside, **fixed, name=f"vision window {window}", tokens=window, packed=True)
    if full:
        whole = {**common, "count": min(full, layers)}
        yield LayerKind(**whole, **fixed, name="vision", tokens=tokens, max_positions=positions)


def _diffusion(section: Section) -> Iterator[LayerKind]:
    """Image tokens to themselves, with the text beside them (joint) or behind a cross attention."""
    require_structure(section, ENCODER)
    layers = read_layers(section, ENCODER)
    features = read_features(section, {"full"})
    common = _common(section, read_heads(section, ENCODER), features, layers, FULL, layers)
    tokens = image_tokens(section)
    if tokens is None:
        section.note(f"no image size: {LATENT_IMAGE_TOKENS} image tokens taken")
        tokens = LATENT_IMAGE_TOKENS
    joint = section.has(a.JOINT)
    if joint or section.has(a.CROSS_WIDTH):
        section.note(f"no text length in the config: {JOINT_TEXT_TOKENS} text tokens taken")
    fixed: dict[str, Any] = {"causal": False, "cached": False}
    yield LayerKind(
        **common,
        **fixed,
        name="joint" if joint else "self",
        attn_type="encoder_only",
        tokens=tokens + JOINT_TEXT_TOKENS * joint,
    )
    if not joint and section.has(a.CROSS_WIDTH):
        yield LayerKind(
            **common, **fixed, name="cross", attn_type="encoder_decoder", tokens=tokens, key_tokens=JOINT_TEXT_TOKENS
        )


def _counts(section: Section, layers: int, *, causal: bool) -> dict[Span, int]:
    spans = layer_spans(section, layers, causal=causal)
    bare = spans.count(None)
    if bare:
        section.note(f"{bare} of {layers} layers {'has' if bare == 1 else 'have'} no softmax attention")
    return dict(Counter(span for span in spans if span is not None))


def _common(section: Section, heads: Heads, features: Features, layers: int, span: Span, count: int) -> dict[str, Any]:
    """The fields that every role fills alike."""
    return {
        "count": count,
        "num_q_heads": heads.q,
        "num_kv_heads": heads.kv,
        "head_dim_qk": heads.dim_qk,
        "head_dim_v": heads.dim_v,
        "latent": heads.latent,
        "window_left": span.left,
        "window_right": span.right,
        "mask_beyond": span.mask_beyond,
        "block_mask_size": span.block,
        "softmax_scale": read_scale(section, heads, layers),
        "softcap": features.softcap,
        "sinks": span.variant in features.sinks_on,
        "alibi": features.alibi,
        "bias": features.bias,
        "dropout_p": features.dropout_p,
        "dtype": features.dtype,
    }


def _distinct(named: list[tuple[str, LayerKind]]) -> list[LayerKind]:
    """Put the tower before a name that two towers share, and a number behind one that even then is not alone."""
    shared = Counter(kind.name for _stem, kind in named)
    kinds: list[LayerKind] = []
    for stem, kind in named:
        name = f"{stem} {kind.name}".strip() if shared[kind.name] > 1 else kind.name
        taken = sum(one.name == name or one.name.startswith(f"{name} #") for one in kinds)
        kinds.append(replace(kind, name=f"{name} #{taken + 1}" if taken else name))
    return kinds


def _with_key_lengths(kinds: list[LayerKind]) -> tuple[LayerKind, ...]:
    """Cross attention whose own section does not say how many keys it reads: those of the tower beside it."""
    sources = [kind for kind in kinds if not kind.cached and not kind.packed and kind.attn_type != "encoder_decoder"]
    length = next((size for kind in sources if (size := kind.tokens or kind.max_positions)), None)
    return tuple(
        replace(kind, key_tokens=length) if kind.attn_type == "encoder_decoder" and kind.key_tokens is None else kind
        for kind in kinds
    )
