"""The same questions in other processes, with other hash seeds, get the same answers under the same ids."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, random, sys
sys.path.insert(0, sys.argv[1])
for name in ("torch", "triton", "numba"): sys.modules[name] = None
from attn_backends import AttnBackendsError, Registry, select
from tests.properties.drawing import draw_device, draw_policy, draw_request
rng = random.Random(21)
registry = Registry(autoload=False)
names = registry.snapshot().names()
answers = []
for _ in range(1500):
    request, policy, device = draw_request(rng), draw_policy(rng, names), draw_device(rng)
    try:
        decision = select(request, policy=policy, device=device, registry=registry)
    except AttnBackendsError as error:
        decision = error.decision
    codes = {c.name: [r.code for r in c.reasons] for c in decision.candidates}
    answers.append([decision.id, decision.backend, decision.source, codes, decision.registry])
json.dump(answers, sys.stdout)
"""


def _answers(hash_seed: str, order: str) -> list[object]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "FIELD": order}
    command = [sys.executable, "-c", SCRIPT, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    answers: list[object] = json.loads(done.stdout)
    return answers


def test_decisions_do_not_depend_on_the_process():
    """Ids, winners, sources and codes of 1,500 questions are alike under three hash seeds, without torch."""
    first, second, third = (_answers(seed, "a") for seed in ("0", "1", "4242"))
    assert len(first) == 1500
    assert first == second == third
