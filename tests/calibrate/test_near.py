"""Who is worth timing, by what is predicted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from attn_backends.calibrate.near import far_behind, lead


def candidates(**told):
    """By name: a prediction, or a prediction and numerics."""
    made = {name: one if isinstance(one, tuple) else (one, "exact") for name, one in told.items()}
    return [SimpleNamespace(name=name, predicted_ms=ms, numerics=how) for name, (ms, how) in made.items()]


@pytest.mark.parametrize(
    ("told", "kept", "far", "ahead"),
    [
        ({"a": 1.0, "b": 1.2, "c": 1.4, "d": 1.5}, (), {"d": 1.5}, 1.2),
        ({"a": 1.0, "b": 9.0, "c": 9.5}, (), {"c": 9.5}, 9.0),
        ({"a": 1.0, "b": 1.2, "c": 8.0, "d": 9.0}, ("c",), {"d": 9.0}, 1.2),
        ({"a": 1.0, "b": 1.2, "c": None}, (), {}, 1.2),
        ({"a": 1.0, "b": 1.1, "c": 1.3, "q": (0.5, "quantized")}, (), {}, 1.1),
        ({"a": 1.0, "b": 1.1, "q": (2.0, "quantized")}, (), {"q": 2.0}, 1.1),
        ({"q": (1.0, "quantized"), "r": (1.1, "quantized"), "s": (3.0, "quantized")}, (), {"s": 3.0}, 1.0),
        ({"a": None, "b": None}, (), {}, 1.0),
        ({}, (), {}, 1.0),
    ],
    ids=["within", "two-at-least", "kept", "unpredicted", "quantized-is-no-measure", "quantized-far", "quantized-alone",
         "nobody-predicted", "nobody"],
)  # fmt: skip
def test_far_behind_is_beyond_the_factor_of_the_best_that_all_may_use(told, kept, far, ahead):
    """The two best are timed however far apart; `lead` is how far."""
    assert far_behind(candidates(**told), 1.4, kept) == far
    assert lead(candidates(**told)) == ahead
