"""`BackendConformance`: the suite as a test class for other people's repositories.

    from attn_backends.conformance import BackendConformance

    class TestMyFA(BackendConformance):
        backend = "my_fa"
        level = "quick"        # or full, deep; pytest --attn-level beats it
        device = "cuda"        # or cpu; pytest --attn-device beats it. Left out: the GPU if it is here and declared, else cpu

One test per item, whose id is the item's; -k, -x and -n work as ever. Needs pytest and torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from attn_backends.conformance.item import Item
from attn_backends.conformance.pytest_items import Target, TargetError, items_of, judge, uncovered

Answer = TypeVar("Answer")


class BackendConformance:
    """Name the backend in a subclass whose name starts with `Test`."""

    backend: str = ""
    level: str = "quick"
    device: str = ""

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """One test per item of the backend."""
        if "conformance_item" not in metafunc.fixturenames:
            return
        items = _or_fail(items_of, type(self), metafunc.config)
        metafunc.parametrize("conformance_item", items, ids=[item.id for item in items])

    def test_conformance(self, conformance_item: Item, pytestconfig: Any) -> None:
        """The promise of the item's clauses holds."""
        judge(_target(type(self), pytestconfig), conformance_item)

    def test_everything_declared_is_shown(self, pytestconfig: Any) -> None:
        """A declared feature that no item shows is a failure."""
        hidden = _or_fail(uncovered, type(self), pytestconfig)
        assert not hidden, f"declared, and no case of the suite shows it: {', '.join(hidden)}"


def _or_fail(ask: Callable[[Target], Answer], tests: type[BackendConformance], config: Any) -> Answer:
    """The answer for the class's target; a target that cannot be tested is a failure in one sentence."""
    import pytest

    try:
        return ask(_target(tests, config))
    except TargetError as error:
        pytest.fail(f"{tests.__name__}: {error}", pytrace=False)


def _target(tests: type[BackendConformance], config: Any) -> Target:
    if not tests.backend:
        raise TargetError('say which backend: backend = "my_fa"')
    level = config.getoption("attn_level", None) or tests.level
    return Target(tests.backend, level, config.getoption("attn_device", None) or tests.device)
