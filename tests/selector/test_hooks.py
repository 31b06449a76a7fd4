"""Hooks: they watch and correct; one that raises is reported once, switched off, and fails no call."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from attn_backends import Policy, add_hooks, hookimpl, remove_hooks, select
from attn_backends.selector.select import as_device
from tests.selector.scenes import decide, registry, request


class Watcher:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.decided: list[object] = []

    @hookimpl
    def attn_backends_decided(self, decision):
        self.decided.append(decision)


class Broken:
    """Raises wherever it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    @hookimpl
    def attn_backends_decided(self, decision):
        self.asked += 1
        raise RuntimeError("decided: broken on purpose")

    @hookimpl
    def attn_backends_rank(self, request, candidates):
        self.asked += 1
        raise RuntimeError("rank: broken on purpose")

    @hookimpl
    def attn_backends_device(self, device):
        self.asked += 1
        raise RuntimeError("device: broken on purpose")


class Corrected:
    """Says that the device has less shared memory."""

    @hookimpl
    def attn_backends_device(self, device):
        return dataclasses.replace(device, smem_bytes=1234)


@pytest.fixture
def plugged():
    added = []

    def plug(plugin, name=None):
        added.append(add_hooks(plugin, name))
        return plugin

    yield plug
    for name in added:
        remove_hooks(name)


def test_a_watcher_sees_each_new_decision_once(plugged):
    """A cache hit is no new decision."""
    watcher, made = plugged(Watcher()), registry()
    decision = decide(made)
    decide(made)
    assert watcher.decided == [decision]


def test_a_hook_that_raises_is_reported_once_and_switched_off(plugged, caplog):
    """The decision stands, one warning names plugin, hook and error, and the plugin is not asked again."""
    broken, watcher, made = plugged(Broken(), "broken-one"), plugged(Watcher()), registry()
    with caplog.at_level(logging.WARNING, "attn_backends"):
        assert decide(made).backend == "b"
        assert decide(made, request=request(seq_k=9)).backend == "b"
    assert broken.asked == 1
    assert len(watcher.decided) == 2
    assert len(caplog.records) == 1
    text = caplog.records[0].getMessage()
    assert all(word in text for word in ("broken-one", "attn_backends_decided", "RuntimeError", "broken on purpose"))


class Reversed:
    """Ranks the names backwards, first."""

    @hookimpl
    def attn_backends_rank(self, request, candidates):
        return sorted(candidates)


def test_a_hook_counts_from_the_moment_it_is_put_in(plugged):
    """Answers from before a hook came, or went, are not given again."""
    made, policy = registry(), {"rank_hooks": ["reversed"]}
    assert decide(made, policy).backend == "b"
    plugged(Reversed(), "reversed")
    assert (decide(made, policy).backend, decide(made, policy).source) == ("a", "rank_hook")
    remove_hooks("reversed")
    assert decide(made, policy).backend == "b"


def test_a_device_hook_counts_from_the_moment_it_is_put_in(plugged):
    """A question about this machine, asked before, is asked again of the corrected device."""
    made = registry()
    select(request(), registry=made)
    plugged(Corrected())
    assert select(request(), registry=made).device.smem_bytes == 1234


def test_a_rank_hook_that_raises_leaves_the_other_levels(plugged, caplog):
    """The order of a failed hook does not count; priority decides."""
    plugged(Broken(), "broken-rank")
    with caplog.at_level(logging.WARNING, "attn_backends"):
        decision = decide(registry(), {"rank_hooks": ["broken-rank"]})
    assert (decision.backend, decision.source) == ("b", "priority")
    assert "rank: broken on purpose" in caplog.text


def test_a_device_hook_corrects_the_machine_but_no_pretended_device(plugged):
    """Facts of the real device pass through the hook; a pretended one is as it was asked."""
    plugged(Corrected())
    assert as_device(None).smem_bytes == 1234
    assert as_device("h200").smem_bytes != 1234
    assert select(request(), registry=registry()).device.smem_bytes == 1234


def test_a_device_hook_that_raises_leaves_the_device(plugged, caplog):
    """The device is as it was before the hook."""
    broken = plugged(Broken())
    with caplog.at_level(logging.WARNING, "attn_backends"):
        first, second = as_device(None), as_device(None)
    assert first == second
    assert broken.asked == 1


def test_a_misspelt_hook_is_refused():
    """A function marked as a hook that is none is an error when the plugin is put in, and nothing stays in."""

    class Misspelt:
        @hookimpl
        def attn_backends_decide(self, decision):
            """A hook of that name does not exist."""

    plugin = Misspelt()
    with pytest.raises(Exception, match="attn_backends_decide"):
        add_hooks(plugin)
    remove_hooks(plugin)


def test_a_removed_watcher_sees_nothing(plugged):
    """After remove_hooks the plugin is not told."""
    watcher = plugged(Watcher(), "gone")
    remove_hooks("gone")
    decide(registry())
    assert watcher.decided == []


def _lazily(request, candidates):
    yield "a"
    raise RuntimeError("later")


def _leaves(device):
    raise SystemExit(3)


BAD_ANSWERS = {
    "a number": ("rank", lambda request, candidates: 5),
    "a text": ("rank", lambda request, candidates: "a"),
    "no texts": ("rank", lambda request, candidates: [["a"], "a"]),
    "a generator that raises": ("rank", _lazily),
    "no device": ("device", lambda device: "h200"),
    "leaves": ("device", _leaves),
}


@pytest.mark.parametrize(("hook", "answer"), BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
def test_an_answer_of_another_kind_switches_a_hook_off(plugged, caplog, hook, answer):
    """It is reported like an exception, once, and the call goes on without it."""

    class Plugin:
        pass

    plugin = Plugin()
    setattr(plugin, f"attn_backends_{hook}", hookimpl(answer))
    plugged(plugin, "odd")
    made, policy = registry(), Policy(rank_hooks=["odd"])
    with caplog.at_level(logging.WARNING, "attn_backends"):
        for length in (8, 80):
            decision = select(
                request(seq_k=length), registry=made, policy=policy, device=None if hook == "device" else "h200"
            )
            assert decision.backend == ("b" if hook == "rank" else decision.backend)
            assert decision.source != "rank_hook"
    assert [record.getMessage().count("switched off") for record in caplog.records] == [1]
