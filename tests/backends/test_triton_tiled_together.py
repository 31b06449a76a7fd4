"""Compiling side by side takes nothing from a caller who does so too, and leaves nothing behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from triton.runtime._async_compile import active_mode  # noqa: E402

from attn_backends.backends.triton_tiled.together import Launch, compile_side_by_side  # noqa: E402


class Interrupted:
    """A kernel whose compilation the user interrupts."""

    def warmup(self, *_arguments: Any, **_options: Any) -> None:
        def compile_it() -> None:
            raise KeyboardInterrupt

        active_mode.get().submit("kernel", compile_it, print)


class Compiled:
    """A kernel that is compiled at once."""

    def warmup(self, *_arguments: Any, **_options: Any) -> None:
        pass


def two_of(kernel: Any) -> list[Launch]:
    launch = Launch(kernel=kernel, grid=(1,), arguments=(torch.zeros(1),), options={})
    return [launch, launch]


def test_an_interrupt_leaves_no_mode_behind() -> None:
    """Else whatever the thread launches next would wait for threads that have ended."""
    with pytest.raises(KeyboardInterrupt):
        compile_side_by_side(two_of(Interrupted()))
    assert active_mode.get() is None
    compile_side_by_side(two_of(Compiled()))


def test_a_caller_may_compile_in_threads_as_well() -> None:
    """Triton knows one mode at a time; the caller's is the same one afterwards."""
    with ThreadPoolExecutor(1) as pool, triton.AsyncCompileMode(pool) as mode:
        compile_side_by_side(two_of(Compiled()))
        assert active_mode.get() is mode
