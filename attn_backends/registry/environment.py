"""`Environment`: what is installed, as far as a decision depends on it. Reads metadata only; imports no package.

`Environment.pretend()` stands for a machine that is not there: every requirement counts as met, unless a version is
given for the package.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from packaging.specifiers import SpecifierSet

from attn_backends.registry.certificates import Certificate
from attn_backends.registry.requires import Requires

ALWAYS_RECORDED = ("attn-backends", "torch", "triton", "numba-cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Package versions, certificates and the driver; hashable, part of every decision."""

    versions: tuple[tuple[str, str], ...] = ()
    assume_met: bool = False
    certificates: frozenset[Certificate] = field(default_factory=frozenset)
    driver: str | None = None

    @classmethod
    def current(cls, packages: Iterable[str] = (), certificates: Iterable[Certificate] = ()) -> Environment:
        """This machine: versions of the packages that manifests ask for, read from their metadata."""
        names = sorted({_canonical(name) for name in (*ALWAYS_RECORDED, *packages)})
        found = ((name, installed_version(name)) for name in names)
        versions = tuple((name, version) for name, version in found if version is not None)
        return cls(versions=versions, certificates=frozenset(certificates))

    @classmethod
    def pretend(cls, **versions: str) -> Environment:
        """A machine where everything is installed; `pretend(torch="2.11")` fixes single versions."""
        named = tuple(sorted((_canonical(name), text) for name, text in versions.items()))
        return cls(versions=named, assume_met=True)

    def version(self, package: str) -> str | None:
        """The version of a package, None if it is absent or not known."""
        wanted = _canonical(package)
        return next((version for name, version in self.versions if name == wanted), None)

    def meets(self, requirement: Requires) -> bool:
        """Whether a `requires` entry holds here; markers that do not apply to this Python count as met."""
        if not requirement.applies:
            return True
        version = self.version(requirement.name)
        if version is None:
            return self.assume_met
        return fits(requirement.specifier, version)

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        return {
            "versions": dict(self.versions),
            "assume_met": self.assume_met,
            "certificates": sorted([list(item) for item in self.certificates]),
            "driver": self.driver,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Environment:
        """Read `to_json`'s dict."""
        certificates = frozenset(
            (name, version, digest, arch) for name, version, digest, arch in data.get("certificates", ())
        )
        return cls(
            versions=tuple(sorted(data.get("versions", {}).items())),
            assume_met=bool(data.get("assume_met", False)),
            certificates=certificates,
            driver=data.get("driver"),
        )


def _canonical(package: str) -> str:
    """A distribution's name as PEP 503 compares it; `packaging.utils` says the same, but loads every platform tag."""
    return re.sub(r"[-_.]+", "-", package).lower()


@functools.lru_cache(maxsize=512)
def fits(specifier: SpecifierSet, version: str) -> bool:
    """Whether a version lies in a specifier; pre-releases and local versions (`2.13.0+cpu`) count."""
    return specifier.contains(version, prereleases=True)


def installed_version(package: str) -> str | None:
    """Version of an installed distribution, from its metadata; None if absent or unreadable."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    except Exception:  # noqa: BLE001  # a damaged dist-info must not take selection down
        return None
