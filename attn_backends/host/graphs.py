"""`watch_graphs`: CUDA graphs counted in the ledger: which launches each one captured, and how often it is replayed.

While somebody watches, `capture_begin`, `capture_end` and `replay` of `torch.cuda.CUDAGraph` are wrapped; else they are
torch's own and nothing here costs anything. A graph that was captured before has no known launches: its replays count for
nobody. Captured launches themselves are told from executed ones by the launch, watched or not.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from attn_backends.host import ledger
from attn_backends.host.ledger import Account

_WRAPPED = ("capture_begin", "capture_end", "replay")
_lock = threading.RLock()
_watchers = 0
_numbers = itertools.count()
_of_this_thread = threading.local()  # .captured: the graph being captured
_own: dict[str, Any] = {}  # what the class itself had under the wrapped names


def around_replay(_number: int) -> Any:
    """What happens around a replay: nothing. `profile` puts a marker here."""
    return nullcontext()


@dataclass(slots=True, eq=False)
class Captured:
    """One graph: its number in this process, and the launches in it in order, each with its account and its pass."""

    number: int = field(default_factory=lambda: next(_numbers))
    launches: list[tuple[Account, str]] = field(default_factory=list)


_graphs: weakref.WeakKeyDictionary[Any, Captured] = weakref.WeakKeyDictionary()


@contextmanager
def watch_graphs() -> Iterator[None]:
    """Count captures and replays of CUDA graphs inside. May be nested; graphs captured inside stay known afterwards."""
    global _watchers
    with _lock:
        _watchers += 1
        if _watchers == 1:
            _wrap(torch.cuda.CUDAGraph)
            ledger.on_capture = _note
    try:
        yield
    finally:
        with _lock:
            _watchers -= 1
            if _watchers == 0:
                ledger.on_capture = None
                _unwrap(torch.cuda.CUDAGraph)


def captured_launches() -> dict[int, list[tuple[str, str]]]:
    """(decision id, pass) of the launches in each known graph, in order."""
    return {
        one.number: [(account.decision.id, what) for account, what in one.launches] for one in list(_graphs.values())
    }


def _wrap(graph_class: Any) -> None:
    for name in _WRAPPED:
        _own[name] = vars(graph_class).get(name)
        setattr(graph_class, name, _wrapped(name, getattr(graph_class, name)))


def _unwrap(graph_class: Any) -> None:
    for name, method in _own.items():
        if method is None:
            delattr(graph_class, name)  # it is the base class's
        else:
            setattr(graph_class, name, method)
    _own.clear()


def _wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    act = {"capture_begin": _begin, "capture_end": _end, "replay": _replay}[name]

    @functools.wraps(original)
    def method(graph: Any, *args: Any, **kwargs: Any) -> Any:
        return act(graph, functools.partial(original, graph, *args, **kwargs))

    return method


def _begin(graph: Any, go: Callable[[], Any]) -> Any:
    made = go()
    _of_this_thread.captured = _graphs[graph] = Captured()
    return made


def _end(_graph: Any, go: Callable[[], Any]) -> Any:
    _of_this_thread.captured = None
    return go()


def _replay(graph: Any, go: Callable[[], Any]) -> Any:
    known = _graphs.get(graph)
    if known is None:
        return go()
    with around_replay(known.number):
        made = go()
    for account, _ in known.launches:
        account.replays.step()
    return made


def _note(account: Account, what: str) -> None:
    """A launch was captured in this thread."""
    captured: Captured | None = getattr(_of_this_thread, "captured", None)
    if captured is not None:
        captured.launches.append((account, what))
