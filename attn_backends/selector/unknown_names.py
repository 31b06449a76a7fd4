"""A warning, once per name, for a policy or knob that names a backend nobody has: `block = egaer` blocks nothing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from attn_backends.box import nearest_names
from attn_backends.registry.telling import tell

if TYPE_CHECKING:
    from attn_backends.registry.registry import Snapshot
    from attn_backends.selector.policy import Policy

_told: set[tuple[str, str]] = set()


def warn_of_unknown_names(policy: Policy, snapshot: Snapshot) -> None:
    """Say which names of `only`, `block`, `prefer` and `trust` are no backend here, and which are near."""
    known = {*snapshot.names(), *(item.name for item in snapshot.broken)}
    fields = {"only": policy.only or (), "block": policy.block, "prefer": policy.prefer, "trust": policy.trust}
    for field, names in fields.items():
        for name in names:
            if name not in known and (field, name) not in _told:
                _told.add((field, name))
                tell(
                    logging.WARNING,
                    "policy %s names %r, which is no backend here; %s",
                    field,
                    name,
                    nearest_names(name, known),
                )
