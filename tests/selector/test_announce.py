"""Telling of decisions never fails a call."""

from __future__ import annotations

import logging

import pytest

from attn_backends import add_hooks, hookimpl, remove_hooks
from tests.selector.scenes import decide, registry


class Broken(logging.Filter):
    """A filter of the program that raises."""

    def filter(self, record):
        raise RuntimeError("filter: broken on purpose")


class Hook:
    """Fails, and by that has something logged."""

    @hookimpl
    def attn_backends_decided(self, decision):
        raise RuntimeError("hook: broken on purpose")


@pytest.fixture
def log():
    log, broken = logging.getLogger("attn_backends"), Broken()
    level = log.level
    log.setLevel(logging.INFO)
    log.addFilter(broken)
    yield log
    log.removeFilter(broken)
    log.setLevel(level)


def test_a_filter_that_raises_fails_no_call(log, capsys):
    """Decision lines, warnings of hooks and of unknown names: the call goes on, and stderr says what the filter raised."""
    name = add_hooks(Hook(), "failing")
    try:
        assert decide(registry(), {"block": ["nobody_of_this_name"]}).backend == "b"
    finally:
        remove_hooks(name)
    assert "filter: broken on purpose" in capsys.readouterr().err
