"""`Tower`: one stack of layers inside a config, and where its section stands: alone, or nested beside others.

A multi-modal config nests `text_config`, `vision_config`, `audio_config` (or a stack under any other key that has heads
inside); an encoder-decoder may nest `encoder` and `decoder`. What is nested is found by shape, what the keys call it
only tells the input apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attn_backends.planning import aliases as a
from attn_backends.planning.roles import role_of
from attn_backends.planning.section import Section

MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Tower:
    """`stem` is its key without `_config`; `generates` is false where text is only embedded (contrastive pairs)."""

    section: Section
    role: str
    stem: str = ""
    generates: bool = True
    crosses: bool = False  # the decoder of a nested encoder-decoder


def find_towers(section: Section, stem: str = "", place: str | None = None, depth: int = 0) -> list[Tower]:
    """Every stack of a config, in reading order; at least one."""
    nested = list(_nested(section)) if depth < MAX_DEPTH else []
    places = {kind for _key, kind, _data in nested}
    paired = {"encoder", "decoder"} <= places
    found = [
        tower
        for key, kind, data in nested
        for tower in find_towers(
            Section(data, f"{section.where}.{key}", section), key.removesuffix("_config"), kind, depth + 1
        )
    ]
    if not found or (_has_heads(section) and not places & {"text", "decoder"}):
        own = Tower(section, role_of(section, place), stem)
        found = [own, *found]
    return [_in_context(tower, section, paired) for tower in found]


def _in_context(tower: Tower, around: Section, paired: bool) -> Tower:
    """What only the config around a stack tells: that its text is not generated, or that it is a cross decoder."""
    embeds_only = around.has(a.CONTRASTIVE) and tower.role == "decoder"
    crosses = paired and tower.role == "decoder"
    role = "paired_encoder" if paired and tower.role == "encoder" else tower.role
    return Tower(tower.section, role, tower.stem, tower.generates and not embeds_only, crosses=tower.crosses or crosses)


def _nested(section: Section) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    for key, data in section.tables().items():
        kind = next((kind for part, kind in a.TOWER_WORDS if part in key), None)
        if _heads_inside(data, MAX_DEPTH) or (kind is not None and key.endswith("_config") and _is_stack(data, kind)):
            yield key, kind, data
        elif kind in ("vision", "audio") and key.endswith("_config"):
            section.note(f"{key} has neither heads nor layers: not read")


def _is_stack(data: dict[str, Any], kind: str) -> bool:
    """A text config must be readable; another one is a stack of attention layers only if it has layers."""
    return kind in ("text", "decoder") or any(data.get(name) is not None for name in a.ENCODER_LAYERS)


def _heads_inside(data: dict[str, Any], depth: int) -> bool:
    if any(data.get(name) is not None for name in (*a.ENCODER_HEADS, *a.DECODER_HEADS)):
        return True
    return depth > 0 and any(_heads_inside(value, depth - 1) for value in data.values() if isinstance(value, dict))


def _has_heads(section: Section) -> bool:
    return section.has((*a.ENCODER_HEADS, *a.DECODER_HEADS))
