"""`Order`: what a `bench` command asks for, put together and checked before anything runs."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attn_backends.bench.suites import Suite, UnknownSuiteError, chosen, read_suite, suite_names
from attn_backends.cli.failure import Failure
from attn_backends.cli.needs_torch import need_torch

if TYPE_CHECKING:
    from attn_backends.bench.cell import Cell
    from attn_backends.bench.results import Results

MOST_SEED = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The suites to run, and everything that is alike for all of them."""

    suites: tuple[Suite, ...]
    patterns: tuple[str, ...]
    backends: tuple[str, ...] | None
    without: tuple[str, ...]
    device: Any  # torch.device
    folder: Path
    seed: int | None
    fresh: bool
    deadline: float | None
    against: Results | None
    figures: Path | None
    command: str

    @classmethod
    def of(cls, given: Mapping[str, Any], *, command: str) -> Order:
        """From the command's options. Raises RequestError, UnknownBackendError, ResultsError, Failure."""
        from attn_backends.bench.results import Results

        device = torch_device(given["device"])
        size = given["size"] or ("small" if device.type == "cpu" else "full")
        against = Results.read(given["against"]) if given["against"] else None
        suites = tuple(read_suite(name, size) for name in given["suites"] or suite_names())
        order = cls(
            suites=tuple(suite for suite in suites if len(suites) == 1 or _has_cells(suite, given["patterns"])),
            patterns=given["patterns"], backends=names_in(given["backends"]), without=names_in(given["without"]) or (),
            device=device, folder=given["out"] or default_folder(device), seed=given["seed"], fresh=given["fresh"],
            deadline=None if given["minutes"] is None else time.monotonic() + 60 * given["minutes"], against=against,
            figures=given["peers_figures"], command=command,
        )  # fmt: skip
        order.check()
        return order

    def check(self) -> None:
        """Raise for a comparison with a suite that is not run, and for backends that nobody knows."""
        if not self.suites:
            raise Failure(f"--cells {' '.join(self.patterns)} keeps no cell", "`attn-backends bench --list`")
        named = self.against.head.get("suite") if self.against else None
        if named is not None and named not in [suite.name for suite in self.suites]:
            raise Failure(f"--against is a file of suite {named!r}, which is not run here", f"add --suite {named}")
        from attn_backends.registry.registry import default_registry

        for name in (*(self.backends or ()), *self.without):
            default_registry().snapshot().get(name)

    def cells_of(self, suite: Suite) -> tuple[Cell, ...]:
        """The cells that the filters leave; all of a suite without shapes."""
        return chosen(suite, self.patterns) if suite.cells else ()

    def backends_here(self) -> tuple[str, ...]:
        """The backends to run, in order."""
        from attn_backends.bench.suite_run import default_backends
        from attn_backends.registry.registry import default_registry

        asked = self.backends or default_backends(default_registry().snapshot())
        return tuple(name for name in asked if name not in self.without)

    def path_of(self, suite: Suite) -> Path:
        """The results file."""
        return self.folder / f"{suite.name}.json"

    def seed_of(self, suite: Suite) -> int:
        """The seed that was given, else the one of the file that is gone on with, else a new one."""
        from attn_backends.bench.results import Results

        if self.seed is not None:
            return self.seed
        path = self.path_of(suite)
        if path.exists() and not self.fresh:
            return int(Results.read(path).head["seed"])
        return secrets.randbelow(MOST_SEED)


def torch_device(name: str | None) -> Any:
    """The torch device of a name, or the usual one. Raises Failure without torch."""
    need_torch("a benchmark runs kernels")
    from attn_backends.bench.target import target

    return target(name)


def _has_cells(suite: Suite, patterns: tuple[str, ...]) -> bool:
    if not patterns:
        return True
    try:
        return bool(suite.cells and chosen(suite, patterns))
    except UnknownSuiteError:
        return False


def names_in(given: str | None) -> tuple[str, ...] | None:
    """The names of a list with commas, each once."""
    if given is None:
        return None
    return tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))


def default_folder(device: Any) -> Path:
    """Where the results of a device lie, from here."""
    from attn_backends.host.dispatch import device_of

    name = device_of(device).name.lower().replace(" ", "_")
    return Path("benchmarks", "results", name)
