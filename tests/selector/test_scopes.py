"""Scopes: which one counts, and that they stay in their thread and task."""

from __future__ import annotations

import asyncio
import threading

import pytest

from attn_backends import Policy, PolicyError, UnfitBackendError, use
from attn_backends.selector.scope import open_scopes
from tests.selector.scenes import backend, codes, decide, registry, request

MADE = registry(backend("a"), backend("b", priority=1), backend("c", priority=9))


def _winner(**changes):
    return decide(MADE, request=request(**changes)).backend


def test_the_innermost_scope_that_applies_counts():
    """Nested scopes: the inner one where its conditions hold, else the outer one, and neither after both."""
    with use("a"), use("b", phase="decode"):
        assert (_winner(), _winner(phase="decode")) == ("a", "b")
    assert _winner() == "c"


def test_a_scope_ends_with_an_exception():
    """An error inside leaves no scope behind."""
    with pytest.raises(KeyError), use("a"):
        raise KeyError("out")
    assert open_scopes() == ()


def test_a_scope_does_not_reach_another_thread():
    """A thread started inside a scope decides without it."""
    found = []
    with use("a"):
        thread = threading.Thread(target=lambda: found.append(_winner()))
        thread.start()
        thread.join()
        found.append(_winner())
    assert found == ["c", "a"]


def test_scopes_of_tasks_do_not_mix():
    """Two tasks that wait inside their scopes each see their own; the loop sees neither."""

    async def inside(name: str, meet: asyncio.Barrier) -> str | None:
        with use(name):
            await meet.wait()
            found = _winner()
            await meet.wait()
        return found

    async def main() -> list[str | None]:
        meet = asyncio.Barrier(2)
        both = await asyncio.gather(inside("a", meet), inside("b", meet))
        return [*both, _winner()]

    assert asyncio.run(main()) == ["a", "b", "c"]


def test_a_task_keeps_the_scope_it_was_made_in():
    """A task made inside a scope goes on in it when the scope is closed."""

    async def later(go: asyncio.Event) -> str | None:
        await go.wait()
        return _winner()

    async def main() -> tuple[str | None, str | None]:
        go = asyncio.Event()
        with use("a"):
            task = asyncio.create_task(later(go))
        go.set()
        return await task, _winner()

    assert asyncio.run(main()) == ("a", "c")


def test_a_scope_may_carry_a_policy():
    """A policy in a scope is laid under the call's own."""
    with use(policy=Policy(block=["c"])):
        decision = decide(MADE)
        assert (decision.backend, codes(decision, "c")) == ("b", {"blocked"})
        assert decide(MADE, {"block": ["b"]}).backend == "a"
    assert _winner() == "c"


def test_the_call_beats_the_scope():
    """backend= of the call is explicit, whatever scopes are open."""
    with use("a"):
        decision = decide(MADE, backend="b")
    assert (decision.backend, decision.source) == ("b", "explicit")


def test_a_scoped_backend_that_does_not_fit_raises():
    """It is not swapped silently; the error says that a scope chose it, why not, and who would fit."""
    made = registry(backend("narrow", box={"dtype": ["float16"]}), backend("wide"))
    with use("narrow"), pytest.raises(UnfitBackendError) as caught:
        decide(made)
    assert all(word in str(caught.value) for word in ("narrow", "scope", "dtype", "bfloat16", "wide"))
    assert caught.value.decision.backend is None


@pytest.mark.parametrize(
    ("arguments", "conditions", "word"),
    [((), {}, "name a backend"), (("a",), {"phse": "decode"}, "phase"), (("a",), {"phase": "decoding"}, "decode")],
)
def test_an_illegal_scope_says_so_at_once(arguments, conditions, word):
    """`use` itself raises PolicyError, with the nearest name, and opens nothing."""
    with pytest.raises(PolicyError, match=word), use(*arguments, **conditions):
        pass
    assert open_scopes() == ()


@pytest.mark.parametrize(
    ("conditions", "changes", "applies"),
    [
        ({"seq_k": {"min": 1000}}, {"seq_k": 1000}, True),
        ({"seq_k": {"min": 1000}}, {"seq_k": 999}, False),
        ({"arch": ["9.0"]}, {}, True),
        ({"arch": ["8.0"]}, {}, False),
        ({"num_kv_heads": [8]}, {}, True),
        ({"softcap": [True]}, {}, False),
        ({"batch": {"mod": 4, "rest": 2}}, {"batch": 6}, True),
        ({"batch": {"mod": 4, "rest": 2}}, {"batch": 8}, False),
    ],
)
def test_conditions_are_axes_and_sizes(conditions, changes, applies):
    """Sets, ranges and remainders over axes and sizes, asked of the exact request."""
    with use("a", **conditions):
        assert (_winner(**changes) == "a") == applies


def test_rules_of_scope_and_call_both_hold():
    """A call's rules come after those of its scopes; neither replaces the other."""
    ban, order = {"when": {}, "block": ["c"]}, {"when": {}, "prefer": ["a"]}
    with use(policy=Policy(rules=[ban])):
        decision = decide(MADE, {"rules": [order]})
    assert (decision.backend, codes(decision, "c")) == ("a", {"blocked"})


def test_a_scope_on_the_batch_ranks_no_batch_invariant_call():
    """Neither its backend nor the order and pin of its policy count there; its bans do."""
    made = registry(
        *(backend(n, priority=p, box={"batch_invariant": "any"}) for n, p in (("a", 1), ("b", 2), ("c", 3)))
    )
    invariant = request(batch_invariant=True, batch=8)
    ordered = Policy(prefer=["a"], pin="a", block=["c"], rules=[{"when": {}, "prefer": ["a"]}])
    with use("a", batch={"min": 4}):
        assert decide(made, request=invariant).backend == "c"
        assert decide(made, request=request(batch=8)).backend == "a"
    with use(policy=ordered, batch={"min": 4}):
        assert decide(made, request=invariant).backend == "b"
    with use("a", phase="prefill"):
        assert decide(made, request=invariant).backend == "a"
