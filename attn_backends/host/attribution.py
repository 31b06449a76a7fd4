"""Which decision a kernel belongs to: markers around launches and what a trace says happened inside them. No torch.

It reads the events of a torch.profiler trace (Chrome's trace format). On a GPU a kernel's activity carries the correlation
number of the call that launched it, and that call lies, on its thread, inside the marker of its decision. A graph's replay
is one call with many kernels: which decisions were captured in it, and in which order, is known; which kernels one launch
of each has, eager launches in the same trace say. On a CPU the operators inside the marker are the kernels.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PREFIX = "attn_backends:"
REPLAY = f"{PREFIX}replay:"
# The whole label, not its start: a kernel of this package may be called `attn_backends::backends::...`.
_LABEL = re.compile(rf"{PREFIX}(replay:\d+|[^:]+:(forward|backward):(gpu|cpu))")
_RUNTIME = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver")
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")

Event = Mapping[str, Any]
Launched = tuple[str, str]  # decision id, and forward or backward


@dataclass(frozen=True, slots=True)
class Use:
    """One kernel that ran once: microseconds; `id` None where no decision is behind it."""

    id: str | None
    name: str
    us: float
    device: str  # gpu | cpu
    replayed: bool


@dataclass(slots=True, eq=False)
class _Marker:
    label: str
    start: float
    end: float
    ran: list[Event]

    @property
    def launch(self) -> Launched:
        identity, what, _ = self.label.removeprefix(PREFIX).split(":")
        return identity, what

    @property
    def replays(self) -> bool:
        return self.label.startswith(REPLAY)

    @property
    def on_gpu(self) -> bool:
        return not self.label.endswith(":cpu")


def launch_label(identity: str, what: str, *, on_gpu: bool) -> str:
    """The name of the marker around a launch; `what` is forward or backward."""
    return f"{PREFIX}{identity}:{what}:{'gpu' if on_gpu else 'cpu'}"


def replay_label(graph: int) -> str:
    """The name of the marker around a graph's replay."""
    return f"{REPLAY}{graph}"


def is_label(name: str) -> bool:
    """Whether this is the name of a marker: of a launch, or of a replay."""
    return _LABEL.fullmatch(name) is not None


def attribute(events: Iterable[Event], graphs: Mapping[int, Sequence[Launched]]) -> list[Use]:
    """Every kernel of a trace; `graphs`: the launches captured in each graph, in order."""
    whole = [event for event in events if event.get("ph") == "X"]
    threads = _markers(whole)
    calls = {_correlation(event): event for event in whole if event.get("cat") in _RUNTIME}
    uses: list[Use] = []
    for event in sorted((event for event in whole if event.get("cat") in _DEVICE), key=_start):
        call = calls.get(_correlation(event))
        marker = None if call is None else _around(threads, call)
        if marker is None:
            uses.append(Use(None, event["name"], _length(event), "gpu", False))
        else:
            marker.ran.append(event)
    for marker in (one for own in threads.values() for one in own):
        if not marker.replays:
            uses += [Use(marker.launch[0], event["name"], _length(event), "gpu", False) for event in marker.ran]
    uses += _replayed(threads, graphs)
    return uses + list(_on_the_cpu(whole, threads))


def _markers(events: Sequence[Event]) -> dict[Any, list[_Marker]]:
    """By thread, by start."""
    threads: dict[Any, list[_Marker]] = {}
    for event in sorted((one for one in events if one.get("cat") == "user_annotation"), key=_start):
        if is_label(event["name"]):
            start = _start(event)
            made = _Marker(event["name"], start, start + _length(event), [])
            threads.setdefault(event["tid"], []).append(made)
    return threads


def _around(threads: Mapping[Any, list[_Marker]], event: Event) -> _Marker | None:
    """The innermost marker around an event, on the event's own thread."""
    own, start = threads.get(event["tid"], []), _start(event)
    for place in range(bisect_right(own, start, key=lambda marker: marker.start) - 1, -1, -1):
        if own[place].end >= start:
            return own[place]
    return None


def _replayed(threads: Mapping[Any, list[_Marker]], graphs: Mapping[int, Sequence[Launched]]) -> Iterator[Use]:
    """The kernels of each replay, along the launches that were captured; what fits none of them is nobody's."""
    markers = [marker for own in threads.values() for marker in own]
    eager = [marker for marker in markers if marker.ran and not marker.replays]  # a captured launch runs nothing
    kernels = {marker.launch: [event["name"] for event in marker.ran] for marker in eager}
    for marker in markers:
        if not marker.replays:
            continue
        captured = graphs.get(int(marker.label.removeprefix(REPLAY)), ())
        expected = [(launch[0], name) for launch in captured for name in kernels.get(launch, ())]
        place = 0
        for event in marker.ran:
            fits = place < len(expected) and expected[place][1] == event["name"]
            yield Use(expected[place][0] if fits else None, event["name"], _length(event), "gpu", True)
            place += fits


def _on_the_cpu(events: Sequence[Event], threads: Mapping[Any, list[_Marker]]) -> Iterator[Use]:
    """The operators inside the markers of calls on the CPU, each with its own time, without that of those inside it."""
    open_ops: list[tuple[float, list[Any]]] = []  # (end, [decision, name, own microseconds])
    done: list[list[Any]] = []
    ops = (event for event in events if event.get("cat") == "cpu_op")
    for event in sorted(ops, key=lambda one: (str(one["tid"]), _start(one), -_length(one))):
        marker = _around(threads, event)
        if marker is None or marker.replays or marker.on_gpu:
            continue
        start, length = _start(event), _length(event)
        while open_ops and open_ops[-1][0] <= start:
            open_ops.pop()
        if open_ops and open_ops[-1][0] >= start + length:
            open_ops[-1][1][2] -= length
        record = [marker.launch[0], event["name"], length]
        open_ops.append((start + length, record))
        done.append(record)
    for identity, name, own in done:
        yield Use(identity, name, max(0.0, own), "cpu", False)


def _correlation(event: Event) -> Any:
    return event.get("args", {}).get("correlation")


def _start(event: Event) -> float:
    return float(event["ts"])


def _length(event: Event) -> float:
    return float(event.get("dur", 0.0))
