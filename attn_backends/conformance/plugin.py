"""The pytest plugin: one test per item of a backend, without writing a test.

    pytest --pyargs attn_backends.conformance --attn-backend my_fa [--attn-level full] [--attn-device cuda]

Ids are the items' ids, so -k, -x and -n work. Loaded by every pytest (entry point `pytest11`), so it imports nothing but
pytest until it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attn_backends.conformance.item import Item
    from attn_backends.conformance.pytest_items import Target

THIS = Path(__file__)
HERE = THIS.parent
PACKAGE = "attn_backends.conformance"
LEVELS = ("quick", "full", "deep")
DEVICES = ("cpu", "cuda")
USAGE = f"pytest --pyargs {PACKAGE} --attn-backend NAME"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of both doors."""
    group = parser.getgroup("attn-backends", "conformance of attention backends")
    group.addoption("--attn-backend", metavar="NAME", help=f"Test this backend: {USAGE}.")
    group.addoption("--attn-level", choices=LEVELS, help="How much is run.  [what the test class says, or quick]")
    group.addoption(
        "--attn-device",
        choices=DEVICES,
        help="Where it is run.  [what the test class says, or the GPU if it is here and declared, else cpu]",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Whoever asks for the suite says of which backend."""
    suites = [argument for argument in config.args if argument.partition("::")[0].startswith(PACKAGE)]
    if suites and config.getoption("pyargs") and not config.getoption("attn_backend"):
        raise pytest.UsageError(f"say which backend: {USAGE}")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """The folder of the suite has this file and nothing else to collect."""
    if HERE not in collection_path.parents:
        return None
    return True if collection_path != THIS else None


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """This file stands for the suite."""
    if file_path == THIS and parent.config.getoption("attn_backend"):
        return SuiteFile.from_parent(parent, path=file_path)
    return None


class SuiteFile(pytest.File):
    """The items of one backend."""

    def collect(self) -> Iterator[pytest.Item]:
        """One test per item of the plan, and one that fails for each declared value that none of them shows."""
        from attn_backends.conformance.pytest_items import Target, TargetError, items_of, uncovered

        option = self.config.getoption
        target = Target(option("attn_backend"), option("attn_level") or "quick", option("attn_device") or "")
        try:
            items = items_of(target)
        except TargetError as error:
            raise self.CollectError(str(error)) from None
        for item in items:
            yield SuiteItem.from_parent(self, name=item.id, target=target, item=item)
        for declared in uncovered(target):
            yield UncoveredItem.from_parent(self, name=f"declared/{declared}")


class SuiteItem(pytest.Item):
    """One item of the suite."""

    def __init__(self, *, target: Target, item: Item, **more: Any) -> None:
        super().__init__(**more)
        self.target = target
        self.item = item
        self.user_properties.append(("clauses", ", ".join(item.clauses)))

    def runtest(self) -> None:
        """Run it; anything but a good outcome raises."""
        from attn_backends.conformance.pytest_items import judge

        judge(self.target, self.item)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """What pytest prints beside it."""
        return self.path, None, f"{self.target.backend}: {self.name}"


class UncoveredItem(pytest.Item):
    """A declared value that no item shows: a failure."""

    def runtest(self) -> None:
        """Fail."""
        pytest.fail(f"{self.name.partition('/')[2]} is declared, and no case of the suite shows it", pytrace=False)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """What pytest prints beside it."""
        return self.path, None, self.name
