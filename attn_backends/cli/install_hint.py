"""How to get a package, as a line for a shell: by name within the limits that manifests set, or a clone by an extra."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import Version

from attn_backends.registry.environment import fits

IN_CLONE = "in a clone: pip install '{}'"  # the project is on no index
EXTRAS = {"attn-backends": ".", "torch": ".[torch]", "triton": ".[triton]", "numba-cuda": ".[cuda]"}
WHOLE = {"numba-cuda": "numba-cuda[cu13]"}  # CUDA's own libraries come with that extra alone


def install_hint(package: str, asked: Sequence[SpecifierSet] = ()) -> str:
    """`asked`: what each manifest says of the package; where none says anything, the project's own extra is named."""
    if not asked and package in EXTRAS:
        return IN_CLONE.format(EXTRAS[package])
    return f"pip install '{WHOLE.get(package, package)}{limits(asked)}'"


def limits(asked: Sequence[SpecifierSet]) -> str:
    """`>=2.11,<2.14`: what suits all of them, no bound within another; what most of them say where nothing suits all."""
    every = {one for limited in asked for one in limited}
    lower = sorted((one for one in every if one.operator == ">="), key=_version)
    upper = sorted((one for one in every if one.operator == "<"), key=_version)
    bounds: Collection[Specifier] = every - {*lower[:-1], *upper[1:]}
    if not _possible(bounds):
        bounds = list(Counter(asked).most_common(1)[0][0])
    return ",".join(sorted(map(str, bounds), reverse=True))


def _version(one: Specifier) -> Version:
    return Version(one.version)


def _possible(bounds: Collection[Specifier]) -> bool:
    """Whether one of the versions that they name, or the earliest, lies within all."""
    whole = SpecifierSet(",".join(map(str, bounds)))
    named = (one.version.removesuffix(".*") for one in bounds)
    return any(fits(whole, version) for version in ("0", *named))
