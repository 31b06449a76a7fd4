"""Taking one sample: what lies between the events, and what comes before them."""

from __future__ import annotations

import pytest
import torch

from attn_backends import Device
from attn_backends.bench import clock
from attn_backends.bench.clock import CudaClock, HostClock
from tests.bench.small import small_run

HAS_GPU = torch.cuda.is_available()


class Stream:
    """A device that does what it is told at once, a millisecond per step, and keeps a diary."""

    def __init__(self, monkeypatch):
        self.now, self.diary = 0.0, []
        self.gaps = []  # of the samples to come: whether the device reached the call before the host had issued it
        stream = self

        class Event:
            def __init__(self, *, enable_timing):
                assert enable_timing

            def record(self):
                stream.diary.append("event")
                self.at = stream.now

            def query(self):
                return stream.gaps.pop(0) if stream.gaps else False

            def elapsed_time(self, other):
                return other.at - self.at

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: stream.diary.append("wait"))
        monkeypatch.setattr(torch, "empty", lambda size, **_: self._buffer(size))

    def _buffer(self, size):
        stream = self

        class Buffer:
            bytes = size

            def zero_(self):
                stream.do("flush", 1.0)

        return Buffer()

    def do(self, what, milliseconds):
        self.diary.append(what)
        self.now += milliseconds


def test_the_events_enclose_the_call_alone_behind_a_flush(monkeypatch):
    """Flush, event, call, event, wait: the device's time is the call's, and the cache was written before."""
    stream = Stream(monkeypatch)
    made = CudaClock(torch.device("cpu"), Device.pretend("h200"))
    stream.diary.clear()
    device_ms, host_ms = made.sample(lambda: stream.do("call", 0.25), host_ms=0.0)
    assert stream.diary == ["flush", "event", "call", "event", "wait"]
    assert device_ms == 0.25
    assert host_ms >= 0


@pytest.mark.parametrize(("host_ms", "flushes"), [(0.0, 1), (0.9, 2), (3.0, 4), (1e6, clock.MOST_FLUSHES)])
def test_the_device_is_kept_busy_while_the_host_issues_the_call(monkeypatch, host_ms, flushes):
    """A call that takes the host 3 ms gets 3 ms of work put in front of it, beside the flush."""
    stream = Stream(monkeypatch)
    made = CudaClock(torch.device("cpu"), Device.pretend("h200"))
    stream.diary.clear()
    made.sample(lambda: None, host_ms)
    assert stream.diary.count("flush") == flushes


def test_a_sample_with_a_gap_is_taken_again_with_more_in_front(monkeypatch):
    """What the host held up is not the device's time."""
    stream = Stream(monkeypatch)
    made = CudaClock(torch.device("cpu"), Device.pretend("h200"))
    stream.diary.clear()
    stream.gaps = [True, False]
    lengths = iter([7.0, 0.25])
    device_ms, _ = made.sample(lambda: stream.do("call", next(lengths)), host_ms=1.0)
    assert device_ms == 0.25
    first, second = " ".join(stream.diary).split(" wait")[:2]
    assert (first.count("flush"), second.count("flush")) == (2, 3)


def test_a_call_that_always_has_a_gap_gives_its_shortest(monkeypatch):
    """A call that waits for the device itself is not tried for ever."""
    stream = Stream(monkeypatch)
    made = CudaClock(torch.device("cpu"), Device.pretend("h200"))
    stream.gaps = [True] * 100
    lengths = iter([3.0, 2.0, 5.0, 4.0, *[1.0] * 96])
    device_ms, _ = made.sample(lambda: stream.do("call", next(lengths)), host_ms=0.0)
    assert device_ms == 2.0
    assert len(stream.gaps) == 100 - clock.MOST_TRIES


def test_the_buffer_is_several_times_the_cache(monkeypatch):
    """256 MiB, or four times an L2 cache that is larger than a quarter of that; the method says which."""
    Stream(monkeypatch)
    usual = CudaClock(torch.device("cpu"), Device.pretend("h200"))
    large = CudaClock(torch.device("cpu"), Device.pretend("h200", l2_bytes=200 * 2**20))
    assert "256 MiB" in usual.method
    assert "800 MiB" in large.method


def test_on_a_cpu_both_times_are_the_walls():
    """One clock, one time."""
    device_ms, host_ms = HostClock().sample(lambda: sum(range(20000)), 0.0)
    assert device_ms == host_ms > 0


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("suite", ["prefill", "backward", "decode", "mixed"])
def test_a_small_suite_runs_on_a_gpu(tmp_path, suite):
    """From inputs to file with CUDA events: right, timed, and with a share of the roofline where the device is known."""
    ran = small_run(tmp_path, ("eager",), suite=suite, cells=2, device=torch.device("cuda", 0))
    for _, _, outcome in ran.results.outcomes():
        assert outcome["status"] == "ok", outcome
        assert outcome["device_ms"]["least"] > 0
    assert "CUDA events" in ran.results.head["method"]
