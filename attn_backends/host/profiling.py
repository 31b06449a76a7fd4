"""`profile`: kernel names and device time, attributed to the decisions that launched them, through torch.profiler.

Inside, every launch and every graph's replay runs in a marker; afterwards the trace says what ran in it. Outside, nothing
of this exists: the markers are put around the methods of `Bound` on the way in, and taken off on the way out.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from attn_backends.errors import AttnBackendsError
from attn_backends.host import graphs
from attn_backends.host.attribution import Use, attribute, launch_label, replay_label
from attn_backends.host.evidence import Profile, profiled, store_evidence
from attn_backends.host.launch import Bound
from attn_backends.host.ledger import launches

_MARKED = ("fast", "run", "backward")
_running = threading.Lock()


@contextmanager
def profile() -> Iterator[Profile]:
    """Attribute kernels to decisions inside: `with attn_backends.profile() as p: ...`, then read `p`.

    Kernels of a graph's replay are told apart where the graph was captured inside, or under `watch_graphs`, and each of
    its decisions ran eagerly inside, as in a warm-up. Synchronizes the device on the way out. torch has one profiler per
    process: raises AttnBackendsError inside another `profile`.
    """
    if not _running.acquire(blocking=False):
        raise AttnBackendsError("profile: one is running; torch.profiler cannot be nested")
    found = Profile()
    try:
        before = launches()
        with _marked(), graphs.watch_graphs():
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
            with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
                try:
                    yield found
                finally:
                    if torch.cuda.is_available():
                        torch.cuda.synchronize()
        found.fill(_uses(profiler), before, launches())
        profiled(found)
        store_evidence()
    finally:
        _running.release()


def _uses(profiler: torch.profiler.profile) -> list[Use]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        trace: dict[str, Any] = json.loads(path.read_text(encoding="utf-8", errors="replace"), strict=False)
    return attribute(trace["traceEvents"], graphs.captured_launches())


@contextmanager
def _marked() -> Iterator[None]:
    """Markers around the methods that run kernels, and around replays."""
    with ExitStack() as undo:
        for name in _MARKED:
            own = getattr(Bound, name)
            setattr(Bound, name, _in_marker(own, "backward" if name == "backward" else "forward"))
            undo.callback(setattr, Bound, name, own)
        undo.callback(setattr, graphs, "around_replay", graphs.around_replay)
        graphs.around_replay = lambda _number: record_function(replay_label(_number))
        yield


def _in_marker(own: Callable[..., Any], what: str) -> Callable[..., Any]:
    def marked(bound: Bound, *given: Any) -> Any:
        with record_function(launch_label(bound.decision.id, what, on_gpu=bound.on_gpu)):
            return own(bound, *given)

    return marked
