"""How often a backend is sampled beside the fastest one so far."""

from __future__ import annotations

import pytest
import torch

from attn_backends.bench.clock import HostClock
from attn_backends.calibrate.cells import sizes_of
from attn_backends.calibrate.timing import time_backend
from tests.calibrate.fakes import register_all, unregister_all
from tests.calibrate.test_run import point

CPU = torch.device("cpu")


class Told(HostClock):
    """Every call takes the same."""

    def __init__(self, ms):
        self.ms = ms

    def sample(self, call, host_ms):
        call()
        return self.ms, self.ms


@pytest.fixture(autouse=True)
def fakes():
    register_all()
    yield
    unregister_all()


@pytest.mark.parametrize(
    ("ms", "rival", "samples"),
    [
        (1.0, None, 13),
        (1.0, (0.99, 1.0), 13),
        (1.0, (1.01, 1.02), 13),
        (1.0, (0.8, 0.9), 5),
        (1.0, (1.1, 1.2), 5),
        (3.0, None, 10),
        (9.0, None, 5),
    ],
    ids=["the-first", "alike", "nearly-alike", "clearly-slower", "clearly-faster", "longer", "long"],
)
def test_who_is_clear_of_the_fastest_is_sampled_less(ms, rival, samples):
    """Five times; besides up to eight times where quartiles come within 2 %."""
    cell = point(64).cell
    best = None if rival is None else [list(rival)] * len(sizes_of(cell))
    answer = time_backend("quick", cell, clock=Told(ms), seed=0, device=CPU, check=True, best=best)
    assert (answer["status"], answer["samples"]) == ("ok", samples)
    assert answer["spans"] == [[ms, ms]] * len(sizes_of(cell))
