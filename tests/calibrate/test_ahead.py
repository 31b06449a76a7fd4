"""Compiling ahead: every backend is called once, and one that dies or hangs costs its own call."""

from __future__ import annotations

import pytest

from attn_backends.calibrate import ahead
from attn_backends.calibrate.ahead import Waiting, compile_ahead
from tests.calibrate.fakes import SETUP
from tests.calibrate.test_run import ROOT, point


def called(monkeypatch, *jobs, most_slow=16, slow_s=12.0):
    monkeypatch.setattr(ahead, "TIMEOUT", 6.0)
    monkeypatch.setattr(ahead, "SLOW_S", slow_s)
    monkeypatch.setattr(ahead, "MOST_SLOW", most_slow)
    watched = []
    shapes = [(point(length).cell, name) for length, name in jobs]
    done = compile_ahead(shapes, device="cpu", seed=3, processes=1, setup=SETUP, path=[str(ROOT)], watch=watched.append)
    return done, watched


def test_what_dies_or_hangs_costs_its_own_call(monkeypatch):
    """The others are called by a fresh process; an error in words is an answer too."""
    jobs = [(16, "quick"), (16, "dies"), (16, "hangs"), (32, "quick"), (128, "hungry"), (16, "nobody")]
    done, watched = called(monkeypatch, *jobs)
    assert done == 4
    assert sorted(watched) == sorted(f"compiling s{length}: {name}" for length, name in jobs)


def test_one_that_compiles_for_every_shape_is_not_waited_for(monkeypatch):
    """After so many slow calls the rest of its shapes is left out."""
    jobs = [(length, "slow") for length in (16, 32, 48, 64)]
    done, watched = called(monkeypatch, *jobs, (16, "quick"), most_slow=1, slow_s=0.01)
    assert done == 3
    assert len(watched) == 3


def test_after_the_deadline_no_call_is_begun():
    """Nor a process started."""
    watched = []
    shapes = [(point(16).cell, "quick")]
    assert compile_ahead(shapes, device="cpu", seed=3, processes=1, deadline=0.0, watch=watched.append) == 0
    assert watched == []


LONG = [(16, "a"), (32, "a"), (16, "b"), (64, "a"), (32, "b")]


@pytest.mark.parametrize(
    ("known", "held", "taken"),
    [
        (set(), 0, [(16, "a")]),
        ({"b"}, 0, [(16, "b")]),
        (set(), 1, [(16, "a"), (16, "b")]),
        ({"a"}, 1, [(16, "a"), (16, "b")]),
        ({"b"}, 2, [(16, "b"), (16, "a"), (32, "b")]),
        ({"a"}, 4, [(16, "a"), (16, "b"), (64, "a"), (32, "b"), (32, "a")]),
        ({"a"}, 5, [(16, "a"), (16, "b"), (64, "a"), (32, "b"), (32, "a"), None]),
    ],
    ids=[
        "the-first",
        "of-a-known-backend",
        "not-what-compiles-alike",
        "another-one-rather-than-two-alike",
        "the-end-rather-than-none",
        "three-alike",
        "over",
    ],
)
def test_what_compiles_alike_waits_for_each_other(known, held, taken):
    """Two lengths of one backend and kind do; backends do not. `held` jobs were taken and go on."""
    waiting = Waiting((point(length).cell, name) for length, name in LONG)
    found = [waiting.take(known) for _ in range(held + 1)]
    assert [one if one is None else (one[0].x, one[1]) for one in found] == taken


def test_a_job_that_ends_lets_the_next_one_begin():
    """In the order in which they came, until nothing is left."""
    waiting = Waiting((point(length).cell, name) for length, name in LONG)
    order = []
    while len(waiting):
        job = waiting.take(set())
        order.append((job[0].x, job[1]))
        waiting.end(job)
    assert order == LONG
