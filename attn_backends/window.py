"""The two ways to count a sliding window. Light core: standard library only."""

from __future__ import annotations

from attn_backends.errors import RequestError


def from_sliding_window(sliding_window: int | None) -> int:
    """`window_left` for a model config's `sliding_window=W`, which counts the token itself: W - 1; None is -1 (all).

    Raises RequestError for a window below 1.
    """
    if sliding_window is None:
        return -1
    if type(sliding_window) is not int or sliding_window < 1:
        raise RequestError("sliding_window", sliding_window, "none or a whole number >= 1")
    return sliding_window - 1
