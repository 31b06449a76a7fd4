"""The conformance suite: anyone proves a backend in one command, and the suite proves itself.

Importing it imports neither torch nor pytest; `BackendConformance`, the test class for other people's repositories, is
loaded when it is first touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attn_backends.conformance.backend_tests import BackendConformance as BackendConformance

__all__ = ["BackendConformance"]


def __getattr__(name: str) -> Any:
    """Load the test class."""
    if name != "BackendConformance":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from attn_backends.conformance.backend_tests import BackendConformance

    globals()[name] = BackendConformance
    return BackendConformance
