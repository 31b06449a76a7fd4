"""How many tokens an image is: patches over its size, frames over tubes; class tokens only where a key says so."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attn_backends.planning import aliases as a
from attn_backends.planning.section import Section

JOINT_TEXT_TOKENS = 512  # what large text encoders feed a diffusion transformer; no config states it
LATENT_IMAGE_TOKENS = 4096  # 1024 x 1024 pixels, eightfold latents, patches of two; where the config names no size


def image_tokens(section: Section) -> int | None:
    """Tokens of one image, or None where the config fixes no size."""
    image, patch = section.sizes(a.IMAGE), section.sizes(a.PATCH)
    if image is None or patch is None:
        return None
    patches = math.prod(max(1, size // side) for size, side in zip(_pair(image), _pair(patch), strict=True))
    extra = (section.whole(a.REGISTERS, least=0) or 0) + int(section.flag(a.CLASS_TOKEN) or False)
    return patches * _frames(section) + extra


def window_tokens(section: Section) -> int | None:
    """Tokens of one window of a vision tower that attends inside windows, or None."""
    window, patch = section.whole(a.PATCH_WINDOW, least=0), section.sizes(a.PATCH)
    if not window or patch is None:
        return None
    if section.has(a.FULL_IN_PIXELS):
        return math.prod(max(1, window // side) for side in _pair(patch))
    return window * window if section.has(a.FULL_IN_PATCHES) else None


def _pair(sizes: Sequence[int]) -> tuple[int, int]:
    """Height and width of one, two or three numbers (time first)."""
    return sizes[-2 if len(sizes) > 1 else -1], sizes[-1]


def _frames(section: Section) -> int:
    frames, tube = section.whole(a.FRAMES), section.whole(a.TUBE)
    return max(1, frames // tube) if frames and tube else 1
