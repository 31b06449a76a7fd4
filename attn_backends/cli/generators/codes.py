"""`docs/reason-codes.md`: the closed list of reason codes."""

from __future__ import annotations

from attn_backends.capability import TABLE
from attn_backends.cli.generators.markdown import code, page, table
from attn_backends.selector.log.schema import SELECTOR_CODES

INTRO = """\
Every reason why a backend does not serve a call has one of these codes; there are no others. `attn-backends explain`
prints them, `attn-backends log show --code CODE` filters by them, `log stats` counts them.

The filters act in the order of the first table; a backend's reasons are those of the first filter that refuses it."""

# In the order of the filters. A code that the selector gains is missing here until somebody says what it means.
MEANINGS = {
    "blocked": "the policy blocks this backend, or forbids the reference tier",
    "not_in_only": "the policy has `only`, and this backend is not in it",
    "api_version": "the manifest was written for another version of the backend API",
    "requirement": "a package that the manifest requires is missing or has another version",
    "load_error": "the manifest is broken, or importing the backend failed; the message has the original text",
    "not_certified": "a third-party backend without a conformance certificate for its exact sources, named by nobody",
    "numerics": "the backend is not `exact`, and neither policy nor call allows that",
    "quarantine": "a combination that is known to be wrong, with evidence",
    "gap": "a gap that the backend's own `attn-gaps.toml` admits",
    "smem": "a tile does not fit the device's shared memory (the backend's own `check`)",
    "check": "the backend's own `check` refuses, or failed",
    "unknown_feature": "the request asks for something that this version does not know",
    "outranked": "the backend fits; another one is preferred",
}


def render() -> str:
    """The page."""
    filters = table(("code", "meaning"), ((code(name), MEANINGS[name]) for name in _ordered()))
    axes = table(
        ("code", "refused because of"),
        ((code(row.axis), row.doc) for row in TABLE if row.axis not in SELECTOR_CODES),
    )
    note = "What a box may declare on an axis, and its neutral value: [axes.md](axes.md)."
    return page("Reason codes", INTRO, "## Filters", filters, "## Axes", note, axes)


def _ordered() -> list[str]:
    return [name for name in MEANINGS if name in SELECTOR_CODES] + [
        name for name in SELECTOR_CODES if name not in MEANINGS
    ]
