"""`BackendConformance`: the suite as a test class for other people's repositories.

    from attn_backends.conformance import BackendConformance

    class TestMyFA(BackendConformance):
        backend = "my_fa"
        level = "quick"        # or full, deep; pytest --attn-level beats it
        device = "cpu"         # or cuda; pytest --attn-device beats it

One test per item, whose id is the item's; -k, -x and -n work as ever. Needs pytest and torch.
"""

from __future__ import annotations

from typing import Any

from attn_backends.conformance.item import Item
from attn_backends.conformance.pytest_items import Target, items_of, judge, uncovered


class BackendConformance:
    """Name the backend in a subclass whose name starts with `Test`."""

    backend: str = ""
    level: str = "quick"
    device: str = "cpu"

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """One test per item of the backend."""
        if "conformance_item" not in metafunc.fixturenames:
            return
        items = items_of(_target(type(self), metafunc.config))
        metafunc.parametrize("conformance_item", items, ids=[item.id for item in items])

    def test_conformance(self, conformance_item: Item, pytestconfig: Any) -> None:
        """The promise of the item's clauses holds."""
        judge(_target(type(self), pytestconfig), conformance_item)

    def test_everything_declared_is_shown(self, pytestconfig: Any) -> None:
        """A declared feature that no item shows is a failure."""
        hidden = uncovered(_target(type(self), pytestconfig))
        assert not hidden, f"declared, and no case of the suite shows it: {', '.join(hidden)}"


def _target(tests: type[BackendConformance], config: Any) -> Target:
    if not tests.backend:
        raise ValueError(f'{tests.__name__}: say which backend: backend = "my_fa"')
    level = config.getoption("attn_level", None) or tests.level
    return Target(tests.backend, level, config.getoption("attn_device", None) or tests.device)
