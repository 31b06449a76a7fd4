"""A decision as JSON is the decision: it comes back equal, and deciding it again changes nothing."""

from __future__ import annotations

import json
import random

from attn_backends import AttnBackendsError, Decision, Request, list_backends, select
from tests.properties.drawing import draw_device, draw_policy, draw_request

NAMES = tuple(manifest.name for manifest in list_backends())


def _decisions(seed: int, count: int) -> list[Decision]:
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        request, policy = draw_request(rng), draw_policy(rng, NAMES)
        backend = rng.choice(NAMES) if rng.random() < 0.3 else None
        try:
            made.append(select(request, backend=backend, policy=policy, device=draw_device(rng)))
        except AttnBackendsError as error:
            made.append(error.decision)
    assert None not in made
    return made


def test_a_request_survives_json():
    """`from_json(to_json)` is the same request, through text as well."""
    rng = random.Random(31)
    for _ in range(500):
        request = draw_request(rng)
        assert Request.from_json(json.loads(json.dumps(request.to_json()))) == request


def test_a_decision_survives_json():
    """`from_json(to_json)` is equal, has the same id and explains itself in the same words."""
    for decision in _decisions(32, 300):
        text = json.dumps(decision.to_json())
        back = Decision.from_json(text)
        assert back == decision
        assert back.id == decision.id
        assert json.dumps(back.to_json()) == text
        assert back.explain() == decision.explain()


def test_a_recorded_decision_stands_when_decided_again():
    """Replaying a record on the same registry gives the same winner, source and codes, under the same id."""
    for decision in _decisions(33, 300):
        replay = Decision.from_json(decision.to_json()).replay()
        assert replay.same, replay.differences
        assert replay.decision.id == decision.id
