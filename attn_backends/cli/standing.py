"""`Standing`: a backend and whether it is ready on this machine, whatever the call. Runs no plugin code, imports no torch.

It asks the selector's own filters, those that do not look at the request, so that `list` and `explain` cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attn_backends.cli.reach import reach
from attn_backends.reason import Reason
from attn_backends.registry.registry import Snapshot, default_registry

if TYPE_CHECKING:
    from attn_backends.registry.environment import Environment
    from attn_backends.registry.manifest import Manifest

READY, BROKEN = "ready", "broken"
WORDS = {
    "requirement": "missing requirement",
    "api_version": "other API version",
    "load_error": "does not load",
    "not_certified": "not certified",
    "numerics": "opt-in (numerics)",
    "blocked": "blocked here",
    "not_in_only": "left out here",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One backend. `status` is `ready`, `broken` (no legal manifest) or the code of the first reason against it."""

    name: str
    status: str
    origin: str
    label: str
    reasons: tuple[Reason, ...] = ()
    manifest: Manifest | None = None

    @property
    def word(self) -> str:
        """The status as people read it."""
        return WORDS.get(self.status, self.status)

    @property
    def why(self) -> str:
        """The reasons in one text."""
        return "; ".join(map(str, self.reasons))

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        own = {} if self.manifest is None else _facts(self.manifest)
        reasons = [reason.to_json() for reason in self.reasons]
        return {
            "name": self.name,
            "status": self.status,
            "origin": self.origin,
            "source": self.label,
            **own,
            "reasons": reasons,
        }


def standings(snapshot: Snapshot | None = None) -> tuple[Standing, ...]:
    """Every backend by name, the broken ones among them."""
    found = snapshot or default_registry().snapshot()
    usable = [
        Standing(
            name=manifest.name, origin=manifest.origin, label=manifest.label, manifest=manifest, reasons=reasons,
            status=reasons[0].code if reasons else READY,
        )
        for manifest, reasons in zip(found.manifests, _refusals(found), strict=True)
    ]  # fmt: skip
    return tuple(sorted([*usable, *_broken(found)], key=lambda one: one.name))


def environment_here(snapshot: Snapshot) -> Environment:
    """Versions of all that the manifests ask for; certificates where a backend needs one."""
    from attn_backends.registry.certificates import read_certificates
    from attn_backends.registry.environment import Environment

    packages = {requirement.name for manifest in snapshot.manifests for requirement in manifest.requires}
    foreign = any(manifest.origin == "third_party" for manifest in snapshot.manifests)
    return Environment.current(packages, read_certificates() if foreign else ())


def _refusals(snapshot: Snapshot) -> Iterable[tuple[Reason, ...]]:
    from attn_backends.registry.knobs import current_knobs
    from attn_backends.selector.filters import Asked, static_refusals
    from attn_backends.selector.policy import effective_policy

    policy = effective_policy(None, current_knobs())
    nothing: Any = None  # these filters look at neither request nor device
    asked = Asked(
        request=nothing, device=nothing, policy=policy, environment=environment_here(snapshot), snapshot=snapshot,
        entries=(), forced=policy.pin, named=policy.named(),
    )  # fmt: skip
    return [refusal[1] if refusal else () for refusal in static_refusals(asked, arch=None)]


def _broken(snapshot: Snapshot) -> Iterable[Standing]:
    for item in snapshot.broken:
        reason = Reason("load_error", "load_error", "a broken manifest", "a legal manifest", item.error, item.label)
        yield Standing(name=item.name, status=BROKEN, origin=item.origin, label=item.label, reasons=(reason,))


def _facts(manifest: Manifest) -> dict[str, Any]:
    return {
        "version": manifest.version, "tier": manifest.tier, "numerics": manifest.numerics, "priority": manifest.priority,
        "devices": reach(manifest), "boxes": len(manifest.boxes),
        "requires": [str(requirement) for requirement in manifest.requires], "converts": list(manifest.converts),
    }  # fmt: skip
