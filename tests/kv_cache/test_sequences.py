"""Pages and sequences without tensors: who holds what, copy on write, and nothing changed when pages run out."""

from __future__ import annotations

import random

import pytest

from attn_backends.errors import OutOfPagesError, RequestError
from attn_backends.kv_cache.pool import PagePool
from attn_backends.kv_cache.sequences import Sequences


def made(pages=8, page_size=4):
    pool = PagePool(pages)
    return pool, Sequences(pool, page_size)


def state(pool, sequences):
    return (
        pool.free,
        {name: (tuple(sequences[name].numbers), sequences[name].length) for name in sequences},
        [pool.holders(page) for page in range(pool.size)],
    )


def test_slots_are_pages_times_size_plus_cells():
    _, sequences = made()
    sequences.add("a")
    sequences.add("b")
    assert sequences.grow({"a": 5, "b": 2}).slots == [0, 1, 2, 3, 4, 8, 9]
    assert sequences.grow({"b": 3, "a": 1}).slots == [10, 11, 12, 5]


def test_a_fork_shares_full_pages_and_copies_the_one_it_writes_to():
    pool, sequences = made()
    sequences.add("a")
    sequences.grow({"a": 6})
    sequences.fork("a", "b")
    assert pool.free == 6
    growth = sequences.grow({"b": 1})
    assert growth.copies == [(1, 2)]
    assert growth.slots == [2 * 4 + 2]
    assert sequences["a"].numbers == [0, 1]
    assert sequences["b"].numbers == [0, 2]


def test_the_last_who_grows_into_a_shared_page_keeps_it():
    """Two holders that grow at once need one copy, not two; so one free page is enough."""
    pool, sequences = made(pages=2)
    sequences.add("a")
    sequences.grow({"a": 2})
    sequences.fork("a", "b")
    assert sequences.grow({"a": 1, "b": 1}).copies == [(0, 1)]
    assert pool.free == 0


def test_a_fork_at_a_page_border_copies_nothing():
    _, sequences = made()
    sequences.add("a")
    sequences.grow({"a": 4})
    sequences.fork("a", "b")
    assert sequences.grow({"a": 1, "b": 1}).copies == []


@pytest.mark.parametrize(
    "tokens", [{"a": 17}, {"a": 1, "b": 40}, {"b": 1, "c": 30}], ids=["one", "second of two", "after a copy"]
)
def test_out_of_pages_changes_nothing(tokens):
    pool, sequences = made(pages=4)
    for name in ("a", "c"):
        sequences.add(name)
    sequences.grow({"a": 6, "c": 1})
    sequences.fork("a", "b")
    before = state(pool, sequences)
    with pytest.raises(OutOfPagesError, match="are free"):
        sequences.grow(tokens)
    assert state(pool, sequences) == before


def test_truncating_frees_whole_pages():
    pool, sequences = made()
    sequences.add("a")
    sequences.grow({"a": 9})
    sequences.truncate("a", 4)
    assert (sequences["a"].numbers, sequences["a"].length, pool.free) == ([0], 4, 7)


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.add("a"),
        lambda s: s.fork("nobody", "b"),
        lambda s: s.free("nobody"),
        lambda s: s.grow({"a": -1}),
        lambda s: s.grow({"nobody": 1}),
        lambda s: s.truncate("a", 9),
    ],
    ids=["taken name", "fork of nobody", "free of nobody", "negative tokens", "growth of nobody", "longer than it is"],
)
def test_wrong_requests_are_typed_and_change_nothing(call):
    pool, sequences = made()
    sequences.add("a")
    sequences.grow({"a": 3})
    before = state(pool, sequences)
    with pytest.raises(RequestError):
        call(sequences)
    assert state(pool, sequences) == before


@pytest.mark.parametrize("seed", range(20))
def test_pages_are_neither_lost_nor_shared_by_accident(seed):
    """After any history: holders count the sequences that list a page, free pages are the rest, no cell is written twice."""
    draw = random.Random(seed)  # a test's history
    pool, sequences = made(pages=12, page_size=3)
    names = 0
    for _ in range(60):
        known = list(sequences)
        action = draw.choice(["add", "grow", "grow", "grow", "fork", "free", "truncate", "compact"])
        if action == "add" or not known:
            sequences.add(names)
            names += 1
        elif action == "grow":
            chosen = {name: draw.randrange(5) for name in draw.sample(known, draw.randint(1, len(known)))}
            try:
                slots = sequences.grow(chosen).slots
            except OutOfPagesError:
                continue
            assert len(set(slots)) == len(slots) == sum(chosen.values())
            assert all(pool.holders(slot // 3) == 1 for slot in slots)
        elif action == "fork":
            sequences.fork(draw.choice(known), names)
            names += 1
        elif action == "free":
            sequences.free(draw.choice(known))
        elif action == "truncate":
            name = draw.choice(known)
            sequences.truncate(name, draw.randint(0, sequences[name].length))
        else:
            sequences.compact()
            used = {page for name in sequences for page in sequences[name].numbers}
            assert used == set(range(len(used)))
        listed = [page for name in sequences for page in sequences[name].numbers]
        assert [pool.holders(page) for page in range(12)] == [listed.count(page) for page in range(12)]
        assert pool.free == 12 - len(set(listed))
        assert all(len(sequences[name].numbers) == -(-sequences[name].length // 3) for name in sequences)
