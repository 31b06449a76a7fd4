"""Which part a stack of layers plays: decoder, encoder, both, a vision or audio tower, a diffusion transformer.

The evidence, strongest first: the key that the stack stands under (`vision_config`), `is_encoder_decoder` or layers of
both sides, `is_decoder`, what its input is (latents, patches, spectrograms), a stated `is_causal` or
`use_bidirectional_attention`, keys that only encoders have (segment types, a mask or class token, two-sided windows).
Nothing of these: a decoder. `is_decoder: false` and `use_cache` prove nothing, both are written out for either sort.
"""

from __future__ import annotations

from attn_backends.planning import aliases as a
from attn_backends.planning.section import Section

_BY_PLACE = {"vision": "vision", "audio": "audio", "bridge": "encoder", "encoder": "encoder", "decoder": "decoder"}


def role_of(section: Section, place: str | None) -> str:
    """One of decoder, encoder, encoder_decoder, vision, audio, diffusion; `place` is what its key says."""
    if place in _BY_PLACE:
        return _BY_PLACE[place]
    if is_encoder_decoder(section):
        return "encoder_decoder"
    if section.flag(a.DECODER):
        return "decoder"
    by_input = _by_input(section)
    if by_input is not None:
        return by_input
    causal = stated_causal(section)
    if causal is not None:
        return "decoder" if causal else "encoder"
    return "encoder" if section.has(a.ENCODER_SIGNS) else "decoder"


def is_encoder_decoder(section: Section) -> bool:
    """Stated, or layers of both sides."""
    stated = section.flag(a.ENCODER_DECODER)
    if stated is not None:
        return stated
    encoder, decoder = (
        tuple(name for name in names if name not in a.LAYERS) for names in (a.ENCODER_LAYERS, a.DECODER_LAYERS)
    )
    return section.has(encoder) and section.has(decoder)


def stated_causal(section: Section) -> bool | None:
    """What the config says about later tokens, or None."""
    if section.flag(a.BIDIRECTIONAL):
        return False
    return section.flag(a.CAUSAL)


def _by_input(section: Section) -> str | None:
    if section.has(a.TEXT_SIGNS) and not section.has(a.AUDIO_SIGNS):
        return None
    if section.has((*a.JOINT, "cross_attention_dim")):
        return "diffusion"
    if section.has(a.LATENT_IMAGE_SIGNS) and section.has(a.LATENT_IMAGE_HEAD):
        return "diffusion"
    if section.has(a.AUDIO_SIGNS):
        return "audio"
    return "vision" if section.has(a.VISION_SIGNS) else None
