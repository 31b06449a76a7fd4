"""Request-error cases: the call, or the Request, is refused as such, before any backend is looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attn_backends
from attn_backends.conformance.field_cases.decisions import request_of
from attn_backends.conformance.field_cases.outcome import Difference
from attn_backends.conformance.field_cases.reading import Case
from attn_backends.errors import RequestError


def differences_of_bad_request(case: Case) -> list[Difference]:
    """A Request without tensors."""
    return _refused(case, lambda: request_of(case, case.get("request", {})))


def differences_of_bad_call(case: Case, place: Any) -> list[Difference]:
    """A call on tensors; `place` is a `calling.Place`. Nothing is decided and nothing runs."""
    from attn_backends.conformance.field_cases.calling import prepared

    tensors, given = prepared(case, place)
    before = attn_backends.cache_info()
    found = _refused(case, lambda: attn_backends.attention(*tensors, **given))
    after = attn_backends.cache_info()
    if (after.resolutions, after.hits) != (before.resolutions, before.hits):
        found.append(Difference(what="decisions", expected="none", got="a backend was looked at"))
    return found


def _refused(case: Case, act: Callable[[], Any]) -> list[Difference]:
    try:
        result = act()
    except RequestError as error:
        return [
            Difference(what="message", expected=f"{piece!r} in it", got=str(error))
            for piece in case.get("expect_text", ())
            if piece not in str(error)
        ]
    return [Difference(what="error", expected="a RequestError", got=type(result).__name__)]
