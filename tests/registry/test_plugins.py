"""Installed plugins that misbehave: the host lists, explains and runs on, and says what is wrong with each."""

from __future__ import annotations

import json
import textwrap

import pytest

from tests.selector.scenes import run_python

START = """
import json, sys
import attn_backends
from attn_backends import Policy, Request, list_backends, select
from attn_backends.registry.registry import default_registry
request = Request(dtype="float32", seq_q=3, seq_k=3, num_q_heads=2, num_kv_heads=2, head_dim_qk=16, head_dim_v=16)
def out(decision, name):
    return sorted({r.code for r in decision.candidate(name).reasons} - {"outranked"})
def say(**facts): print(json.dumps(facts))
"""
CALL = """
import torch
q = torch.linspace(-1, 1, 96).view(1, 3, 2, 16)
want = attn_backends.attention(q, q, q, backend="eager")
"""


@pytest.fixture(scope="session")
def ask(plugins):
    """Run a script beside all plugins; what it says last, as a dict."""

    def run(script, *, code=0, **environment):
        done = run_python(START + textwrap.dedent(script), extra_path=plugins, **environment)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_listing_runs_no_plugin_code(ask):
    """All usable plugins are listed with the built-in ones, and none of them is imported."""
    said = ask("""
        names = [m.name for m in list_backends()]
        say(names=names,
            imported=[m for m in sys.modules if m.endswith("_pkg") or m == "torch"])
    """)
    assert {"eager", "good_fa", "crash_at_import", "slow_import", "wrong_api", "check_raises"} <= set(said["names"])
    assert not {"bad_toml", "missing_file", "name_mismatch", "another_name", "twin_fa", "unknown_axis"} & set(
        said["names"]
    )
    assert said["names"].count("eager") == 1
    assert said["imported"] == []


BROKEN = {
    "bad_toml": ["bad_toml_pkg/backend.toml", "not TOML", "line 2"],
    "missing_file": ["cannot be read", "No such file"],
    "name_mismatch": ["another_name", "name_mismatch"],
    "unknown_axis": ["moon_phase", "unknown_axis_pkg/backend.toml:", "[[capability]] 1"],
    "twin_fa": ["twin_a_pkg/backend.toml", "twin_b_pkg/backend.toml", "also claimed"],
}


@pytest.mark.parametrize(("name", "words"), BROKEN.items(), ids=BROKEN.keys())
def test_a_broken_manifest_is_reported_in_the_decision(ask, name, words):
    """It takes part as a candidate with `load_error` and the mistake's own words, and no path of this machine."""
    said = ask(f"""
        decision = select(request, device="cpu")
        mine = [c for c in decision.candidates if c.name == "{name}"]
        text = " ".join(str(r) for c in mine for r in c.reasons)
        say(text=text, codes=[r.code for c in mine for r in c.reasons], backend=decision.backend,
            explained="{name}" in decision.explain())
    """)
    assert set(said["codes"]) == {"load_error"}
    assert all(word in said["text"] for word in words), said["text"]
    assert "/tmp" not in said["text"]
    assert said["explained"]
    assert said["backend"]


def test_a_claimed_built_in_name_stays_built_in(ask):
    """The plugin that calls itself eager is reported; eager is ours and works."""
    said = ask(
        CALL
        + """
        reported = [b.error for b in default_registry().snapshot().broken if b.name == "eager"]
        manifest = default_registry().snapshot().get("eager")
        say(reported=reported, origin=manifest.origin, ran=bool(torch.isfinite(want).all()))
    """.replace("\n        ", "\n")
    )
    assert len(said["reported"]) == 1
    assert "eager" in said["reported"][0]
    assert said["origin"] == "builtin"
    assert said["ran"]


FAILING = {
    "crash_at_import": ["RuntimeError", "broken on purpose"],
    "oserror_at_import": ["OSError", "libmissing_kernels.so.1"],
    "sys_exit_at_import": ["SystemExit", "leaving on purpose"],
    "missing_kernel": ["missing_kernel_pkg", "run"],
}


@pytest.mark.parametrize(("name", "words"), FAILING.items(), ids=FAILING.keys())
def test_a_plugin_that_fails_at_import_is_left_out(ask, name, words):
    """Trusted and best on paper, it fails once: the call is served by another, and the reason has its words."""
    script = (
        CALL
        + f"""
policy = Policy(trust=["{name}"])
first = select(request, device="cpu", policy=policy).backend
got = attn_backends.attention(q, q, q, policy=policy)
after = select(request, device="cpu", policy=policy)
try:
    attn_backends.attention(q, q, q, backend="{name}")
    forced = ""
except attn_backends.AttnBackendsError as error:
    forced = str(error)
say(first=first, right=bool(torch.allclose(got, want, atol=1e-5)), codes=out(after, "{name}"),
    text=str(after.candidate("{name}").reasons[0]), forced=forced)
"""
    )
    said = ask(script)
    assert said["first"] == name
    assert said["right"]
    assert said["codes"] == ["load_error"]
    assert all(word in said["text"] and word in said["forced"] for word in words), said


REFUSED = {
    "wrong_api": ("api_version", ">=9"),
    "missing_requirement": ("requirement", "pip install"),
    "check_raises": ("check", "broken on purpose"),
    "good_fa": ("not_certified", "--certify"),
}


@pytest.mark.parametrize(("name", "reason"), REFUSED.items(), ids=REFUSED.keys())
def test_a_plugin_that_may_not_serve_says_why(ask, name, reason):
    """The reason has the right code and says what would help."""
    trust = "" if name == "good_fa" else f'"{name}"'
    said = ask(f"""
        decision = select(request, device=attn_backends.Device.of("cpu"), policy=Policy(trust=[{trust}]))
        say(codes=out(decision, "{name}"), text=str(decision.candidate("{name}").reasons[0]), backend=decision.backend)
    """)
    code, word = reason
    assert said["codes"] == [code]
    assert word in said["text"]
    assert said["backend"] == "sdpa_cpu_flash"


def test_a_good_plugin_serves_when_named(ask):
    """Opt-in by the call: it runs, is right, and the ledger counts it."""
    said = ask(
        CALL
        + """
got = attn_backends.attention(q, q, q, backend="good_fa")
unnamed = attn_backends.attention(q, q, q)
ran = {r.backend: r.launches for r in attn_backends.launches().values()}
say(right=bool(torch.allclose(got, want, atol=1e-5)), ran=ran)
"""
    )
    assert said["right"]
    assert said["ran"] == {"eager": 1, "good_fa": 1, "sdpa_cpu_flash": 1}


def test_a_slow_plugin_is_paid_for_when_it_is_used(ask):
    """Listing and selecting do not import it."""
    said = ask("""
        decision = select(request, device="cpu", policy=Policy(trust=["slow_import"]))
        say(backend=decision.backend, imported="slow_import_pkg" in sys.modules)
    """)
    assert said["backend"] == "slow_import"
    assert not said["imported"]


def test_autoload_can_be_switched_off(ask):
    """ATTN_BACKENDS_AUTOLOAD=0: no plugin takes part, broken or not."""
    said = ask(
        """
        snapshot = default_registry().snapshot()
        say(origins=sorted({m.origin for m in snapshot.manifests}), broken=len(snapshot.broken))
        """,
        ATTN_BACKENDS_AUTOLOAD="0",
    )
    assert said == {"origins": ["builtin"], "broken": 0}


def test_a_hook_that_raises_fails_no_call(ask):
    """The installed watcher raises once, is reported, and is not asked again."""
    said = ask(
        CALL
        + """
import logging
lines = []
class Keep(logging.Handler):
    def emit(self, record): lines.append(record.getMessage())
logging.getLogger("attn_backends").addHandler(Keep())
from hook_raises_pkg import plugin
attn_backends.add_hooks(plugin, "hook_raises")
for size in (1, 2, 3):
    attn_backends.attention(q[:, :size], q, q)
say(seen=plugin.seen, lines=lines)
"""
    )
    assert said["seen"] == 1
    assert len(said["lines"]) == 1
    assert "hook_raises" in said["lines"][0]


def test_installing_changes_no_decision(ask):
    """With and without the plugins, the same request goes to the same backend."""
    script = 'say(backend=select(request, device="cpu").backend, h200=select(request, device="h200").backend)'
    assert ask(script) == ask(script, ATTN_BACKENDS_AUTOLOAD="0")
