"""`docs/capability-matrix.md`: the built-in backends against the axes."""

from __future__ import annotations

from collections.abc import Sequence

from attn_backends.capability import REQUIRED, TABLE, Row
from attn_backends.cli.generators.markdown import code, codes, page, table
from attn_backends.cli.reach import reach, reach_phrase
from attn_backends.reason import show
from attn_backends.registry.discovery import builtin
from attn_backends.registry.manifest import Manifest

INTRO = """\
What the built-in backends declare, over all their boxes. A call needs *one whole box*, so a column can promise more than
any single box keeps: `attn-backends show NAME` has the boxes, `attn-backends explain` the answer for a call."""

ACROSS = "Different sets of different boxes are set apart by a semicolon. `-`: in no box, the neutral value only."


def render() -> str:
    """The page."""
    manifests = builtin().manifests
    return page("Capability matrix", INTRO, "## Backends", _overview(manifests), "## Axes", ACROSS, _axes(manifests))


def _overview(manifests: Sequence[Manifest]) -> str:
    heads = ("backend", "version", "tier", "numerics", "priority", "runs on", "boxes", "requires", "converts")
    rows = (
        (
            code(one.name), one.version, one.tier, one.numerics, str(one.priority), reach_phrase(reach(one)), str(len(one.boxes)),
            codes(one.raw.get("requires", ())), codes(one.converts),
        )
        for one in manifests
    )  # fmt: skip
    return table(heads, rows)


def _axes(manifests: Sequence[Manifest]) -> str:
    rows = [
        [code(name), *(_declared(manifest, index, part) for manifest in manifests)]
        for index, row in enumerate(TABLE)
        if row.kind.name != "undeclarable"
        for part, name in _parts(manifests, index, row)
    ]
    return table(("axis", *(code(one.name) for one in manifests)), rows)


def _parts(manifests: Sequence[Manifest], index: int, row: Row) -> list[tuple[int, str]]:
    """(part, its name); parts that nobody tells apart stand in one line."""
    boxes = [box.entries[index] for one in manifests for box in one.boxes]
    alike = all(len({None if allowed is None else allowed.text for allowed in entry}) == 1 for entry in boxes)
    return [(0, row.axis)] if alike else list(enumerate(row.parts))


def _declared(manifest: Manifest, index: int, part: int) -> str:
    row = TABLE[index]
    found = [box.entries[index][part] for box in manifest.boxes]
    if all(allowed is None for allowed in found):
        return ""
    neutral = "" if row.neutral is REQUIRED else show(row.neutral)
    texts = dict.fromkeys(neutral if allowed is None else _short(allowed.text) for allowed in found)
    return "; ".join(text for text in texts if not any(_within(text, other) for other in texts))


def _within(text: str, other: str) -> bool:
    """Whether one declared set says nothing that another one does not."""
    if text == other or text.startswith(("min", "mod", "multiple_of")):
        return text != other and other == "any"
    return other == "any" or not text or set(text.split(", ")) < set(other.split(", "))


def _short(text: str) -> str:
    return text[1:-1] if text.startswith("{") and text.endswith("}") else text
