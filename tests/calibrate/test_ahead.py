"""Compiling ahead: every backend is called once, and one that dies or hangs costs its own call."""

from __future__ import annotations

from attn_backends.calibrate import ahead
from attn_backends.calibrate.ahead import compile_ahead
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
    assert watched == [f"compiling s{length}: {name}" for length, name in jobs]


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
