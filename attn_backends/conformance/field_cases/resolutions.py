"""Property cases that count: how many resolutions a run of requests costs. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attn_backends
from attn_backends import Request
from attn_backends.conformance.field_cases.decisions import Scene, request_of, scene_of
from attn_backends.conformance.field_cases.outcome import Difference
from attn_backends.conformance.field_cases.reading import Case


def differences_of_resolutions(case: Case) -> list[Difference]:
    """Decide everything the case lists, and compare what that cost."""
    cost = _cost(scene_of(case), _requests(case))
    found = []
    if "expect_resolutions" in case.table and cost != case.get("expect_resolutions"):
        found.append(Difference(what="resolutions", expected=case.get("expect_resolutions"), got=cost))
    most = case.get("expect_resolutions_max")
    if most is not None and cost > most:
        found.append(Difference(what="resolutions", expected=f"at most {most}", got=cost))
    return found


def _requests(case: Case) -> Iterator[Request]:
    grow = case.get("grow")
    if grow is not None:
        for seq_k in range(grow["seq_k_from"], grow["seq_k_to"] + 1):
            yield request_of(case, {**case.get("request", {}), **grow.get("fields", {}), "seq_k": seq_k})
        return
    for _ in range(case.get("repeat", 1)):
        for changes in case.get("requests", ()):
            yield request_of(case, {**case.get("request", {}), **changes})


def _cost(scene: Scene, requests: Iterable[Request]) -> int:
    before = attn_backends.cache_info().resolutions
    for request in requests:
        attn_backends.select(request, device=scene.device, environment=scene.environment, registry=scene.registry)
    return attn_backends.cache_info().resolutions - before
