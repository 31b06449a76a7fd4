"""Cells that launches count in: each stream's own, each captured call's own, zeros to begin with."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from attn_backends.backends.paged_decode.counters import Counters, counters_for  # noqa: E402

CPU = torch.device("cpu")


def places(cells):
    """Where they lie."""
    return set(range(cells.data_ptr(), cells.data_ptr() + 4 * cells.numel(), 4))


def test_a_stream_keeps_its_cells():
    """Launches on one stream follow each other, and each leaves zeros."""
    counters = Counters(CPU, 64)
    assert places(counters.of_stream(7, 5)) <= places(counters.of_stream(7, 8)) == places(counters.of_stream(7, 3))


def test_nobody_shares():
    """Streams that run side by side, a stream that needs more, calls that graphs captured."""
    counters = Counters(CPU, 64)
    given = [
        counters.of_stream(1, 4),
        counters.of_stream(2, 4),
        counters.of_stream(1, 9),
        counters.taken(4),
        counters.taken(4),
    ]
    assert len(set.union(*map(places, given))) == sum(cells.numel() for cells in given)


class Slow:
    """Cells whose number is told once two threads have asked for it, or one has asked in vain for a while."""

    def __init__(self, cells):
        self.cells, self.both, self.device = cells, threading.Barrier(2), cells.device

    def numel(self):
        with contextlib.suppress(threading.BrokenBarrierError):
            self.both.wait(0.3)
        return self.cells.numel()

    def __getitem__(self, places):
        return self.cells[places]


def test_streams_of_threads_that_ask_at_once_do_not_share():
    """One thread is told how far the cells are used while another is about to use more."""
    counters = Counters(CPU, 64)
    counters._cells = Slow(counters._cells)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(counters.of_stream, (1, 2), (4, 4))
    assert not places(one) & places(other)


def test_where_all_are_taken_a_launch_gets_zeros_of_its_own():
    counters = Counters(CPU, 16)
    counters.taken(12)
    more = counters.taken(5)
    assert more.tolist() == [0] * 5
    assert not places(more) & places(counters.taken(4))


def test_of_a_device():
    """Enough of them, zeros."""
    assert counters_for(CPU, 3).numel() >= 3
    assert not counters_for(CPU, 100).any()
